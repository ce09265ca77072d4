//! urxed
fn main() {}
