//! What the tests of the whole product share. Nothing here is part of it.

pub mod chaos;
pub mod docker;
pub mod harness;
pub mod model;
pub mod scenario;
pub mod sim;
mod skipped;

pub use skipped::skipped;
