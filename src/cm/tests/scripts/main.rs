//! Scripts: one connection manager under test; its peer is the script.

mod active;
mod disconnect;
mod hostile;
mod passive;
mod script;
mod sidr;
