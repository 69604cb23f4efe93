//! The `epoka` binary.
fn main() {}
