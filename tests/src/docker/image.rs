//! The image under test.

use std::path::{Path, PathBuf};

use super::try_docker;

/// The root of the repository.
pub(super) fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests
        .parent()
        .expect("tests/ is in the repository")
        .to_owned()
}

/// The image that `EPOKA_IMAGE` names, else `epoka:latest`; it must be there.
///
/// # Errors
/// It is not there.
pub async fn image() -> Result<String, String> {
    let named = std::env::var("EPOKA_IMAGE").ok().filter(|n| !n.is_empty());
    let name = named.unwrap_or_else(|| "epoka:latest".to_owned());
    match try_docker(&["image", "inspect", "--format", "{{.Id}}", &name]).await {
        Ok(_) => Ok(name),
        Err(_) => Err(format!(
            "there is no image {name}: build it with deploy/image"
        )),
    }
}
