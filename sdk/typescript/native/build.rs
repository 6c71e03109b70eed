//! Tells the linker that Node brings the functions of Node-API.

fn main() {
    napi_build::setup();
}
