//! The product under test.
fn main() {}
