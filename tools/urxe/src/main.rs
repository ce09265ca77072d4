//! urxe
fn main() {}
