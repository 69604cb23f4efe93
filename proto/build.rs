//! Compiles the `.proto` files without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=epoka");
    let files = ["controller", "replica", "log", "events", "supervisor"]
        .map(|name| format!("epoka/v1/{name}.proto"));
    let descriptors = protox::compile(files, ["."])?;
    tonic_prost_build::configure()
        .bytes(".")
        .compile_fds(descriptors)?;
    Ok(())
}
