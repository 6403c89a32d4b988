//! Makes client and server of `heartbeat.proto`; its messages are in `kaas-proto`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../proto/heartbeat.proto");
    let descriptors = protox::compile(["heartbeat.proto"], ["../proto"])?;
    tonic_prost_build::configure()
        .extern_path(".kaas.heartbeat.v1", "::kaas_proto::heartbeat")
        .compile_fds(descriptors)?;
    Ok(())
}
