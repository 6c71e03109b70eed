//! One program for all targets: the variable `FUZZ_TARGET` selects the target. Its arguments are libFuzzer's options.

#![no_main]

mod targets;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target of fuzz/src/targets.rs");
    let target = targets::TARGETS.iter().find(|(known, _)| *known == name);
    target.unwrap_or_else(|| panic!("{name} is none of the targets of fuzz/src/targets.rs")).1
});

fuzz_target!(|data: &[u8]| TARGET(data));
