//! The `epoka` binary.

fn main() -> std::process::ExitCode {
    epoka::main()
}
