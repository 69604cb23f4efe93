//! The product under test: the very entry point of the `epoka` binary, so that tests can start it as child processes.

fn main() -> std::process::ExitCode {
    epoka::main()
}
