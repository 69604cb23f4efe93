//! Standard output of commands that print an answer and end. Whoever reads it may have seen enough and be gone, as `head` does:
//! then there is nothing left to do, and nothing to complain of.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write as _};

/// Prints to standard output; ends the process quietly when nobody reads it any more.
pub fn print(text: Arguments<'_>) {
    if let Err(error) = std::io::stdout().write_fmt(text) {
        if error.kind() == ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        eprintln!("epoka: cannot write to standard output: {error}");
        std::process::exit(1);
    }
}

/// Like `println!`, through [`print`].
macro_rules! say {
    ($($argument:tt)*) => {
        $crate::output::print(format_args!("{}\n", format_args!($($argument)*)))
    };
}
