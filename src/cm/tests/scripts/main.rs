//! The connection manager, as scripts: one manager under test, and a peer that is nothing but the
//! script.

mod active;
mod disconnect;
mod hostile;
mod passive;
mod script;
mod sidr;
