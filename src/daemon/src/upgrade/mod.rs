//! Upgrades: a running daemon executes the program that has taken the place of its own file, and
//! that goes on with all that is not in this process: slots that are workers, or programs' own.
//!
//! ```text
//!  SIGUSR2 ─► signals.rs ─► check.rs   the new program, as a child, reads what it would be given
//!                  │         and says whether it understands that; else all stays as it was
//!                  ▼
//!     broker ─► image.rs     all that the broker knows, as bytes in a sealed file
//!                  ▼
//!               parcel.rs    file and descriptors, in a socket that is standard input
//!                  ▼
//!               execute.rs   execve: the same process, so that workers stay its children
//!                  ▼
//!     the new program: parcel.rs ─► image.rs ─► broker
//! ```
//!
//! Nothing of the old process is touched before the kernel executes the new program, so that
//! whatever fails until then changes nothing. Slots notice nothing but that the broker takes a
//! moment.

mod check;
mod error;
mod execute;
mod image;
mod parcel;

pub(crate) use check::{answer, understands};
pub(crate) use error::{ImageError, UpgradeError};
pub(crate) use execute::{Program, Resumed, let_signals_come};
pub(crate) use image::{CountersByName, State, StateOfControl, Times};
pub(crate) use parcel::{Descriptors, Fd, ReceivedDescriptors};
