//! Makes the message types of `heartbeat.proto`, without a `protoc` on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=heartbeat.proto");
    let descriptors = protox::compile(["heartbeat.proto"], ["."])?;
    prost_build::Config::new().compile_fds(descriptors)?;
    Ok(())
}
