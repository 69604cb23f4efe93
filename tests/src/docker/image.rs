//! The image under test: the one that is named, or one built now.

use std::path::{Path, PathBuf};

use tokio::process::Command;
use tokio::sync::OnceCell;

use super::{finish, try_docker};

/// The root of the repository.
pub(super) fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests
        .parent()
        .expect("tests/ is in the repository")
        .to_owned()
}

/// The image that `EPOKA_IMAGE` names, which must be there; without it one is built with `deploy/image`, once in a process.
///
/// # Errors
/// It is not there, or cannot be built.
pub async fn image() -> Result<String, String> {
    static BUILT: OnceCell<Result<String, String>> = OnceCell::const_new();
    BUILT.get_or_init(find_or_build).await.clone()
}

async fn find_or_build() -> Result<String, String> {
    if let Ok(name) = std::env::var("EPOKA_IMAGE") {
        try_docker(&["image", "inspect", "--format", "{{.Id}}", &name]).await?;
        return Ok(name);
    }
    let name = "epoka:under-test";
    let mut build = Command::new(root().join("deploy/image"));
    build.arg(name).current_dir(root());
    finish(build).await?;
    Ok(name.to_owned())
}
