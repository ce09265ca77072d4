//! Scripts: one connection manager under test; its peer is the script.

mod active;
mod disconnect;
mod hostile;
mod passive;
mod saved;
mod script;
mod sidr;
