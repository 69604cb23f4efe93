//! Where the program is.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The program's file.
const NAME: &str = "epoka";
/// The variable that names it.
const VARIABLE: &str = "EPOKA_BIN";

/// Finds the program: the one that was asked for, else what EPOKA_BIN names, else the one that was built beside this test,
/// else the first in PATH.
///
/// # Errors
/// [`Error::NoBinary`].
pub fn find(asked: Option<&Path>) -> Result<PathBuf> {
    let variable = std::env::var_os(VARIABLE).filter(|v| !v.is_empty());
    let named = asked
        .map(|path| (path.to_owned(), "which Builder::binary names"))
        .or_else(|| variable.map(|path| (path.into(), "which EPOKA_BIN names")));
    if let Some((path, who)) = named {
        let found = path.is_file().then(|| path.clone());
        return found.ok_or_else(|| Error::NoBinary {
            looked: format!("{}, {who}", path.display()),
        });
    }
    let test = std::env::current_exe().unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beside = beside(&test);
    let mut places = beside.iter().cloned().chain(std::env::split_paths(&path));
    let found = places.find_map(|place| Some(place.join(NAME)).filter(|p| p.is_file()));
    found.ok_or_else(|| {
        let beside: Vec<_> = beside.iter().map(|p| p.display().to_string()).collect();
        Error::NoBinary {
            looked: format!("{} or PATH", beside.join(", ")),
        }
    })
}

/// Where cargo puts programs that belong to a test: tests are in `target/debug/deps`, programs in `target/debug`.
fn beside(test: &Path) -> Vec<PathBuf> {
    let places = test.ancestors().skip(1).take(2);
    places
        .filter(|p| !p.as_os_str().is_empty() && p.parent().is_some())
        .map(Path::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_built_beside_a_test_is_looked_for_first() {
        let test = Path::new("/src/target/debug/deps/orders-1f2e");
        let expected = ["/src/target/debug/deps", "/src/target/debug"];
        assert_eq!(beside(test), expected.map(PathBuf::from));
        assert!(beside(Path::new("")).is_empty());
    }

    #[test]
    fn a_program_that_is_not_there_is_answered_with_what_to_do() {
        let error = find(Some(Path::new("/nowhere/epoka"))).expect_err("not there");
        let error = error.to_string();
        for part in [
            "/nowhere/epoka",
            "Builder::binary",
            "EPOKA_BIN",
            "cargo install --path client/cli",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }
}
