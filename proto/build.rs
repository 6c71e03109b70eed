//! Compiles the protocol without protoc, and keeps its descriptors for gRPC reflection.

use std::path::PathBuf;

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=toolyard");
    let files = [
        "toolyard/v1/content.proto",
        "toolyard/v1/conversation.proto",
        "toolyard/v1/fleet.proto",
        "toolyard/v1/index.proto",
        "toolyard/v1/objects.proto",
        "toolyard/v1/runs.proto",
        "toolyard/v1/schedules.proto",
        "toolyard/v1/tools.proto",
        "toolyard/v1/webhooks.proto",
        "toolyard/wire/v1/history.proto",
        "toolyard/wire/v1/log.proto",
        "toolyard/wire/v1/overview.proto",
        "toolyard/wire/v1/position.proto",
        "toolyard/wire/v1/schedule.proto",
        "toolyard/wire/v1/worker.proto",
    ];
    let descriptors = protox::compile(files, ["."])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    // A message's descriptor is found by its name, and defines the message's JSON form.
    let mut config = tonic_prost_build::Config::new();
    config.enable_type_names();
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::codec::MessageCodec")
        .client_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
        .server_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
        .compile_fds_with_config(descriptors, config)?;
    Ok(())
}
