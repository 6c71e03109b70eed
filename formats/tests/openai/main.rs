//! Runs in the form of OpenAI's APIs, and requests of those APIs.

extern crate run as toolyard_run;

mod hosted;
mod mutated;
mod properties;
#[allow(dead_code, reason = "the run's own tests use all of it")]
#[path = "../../../core/run/tests/reader/mod.rs"]
mod reader;
mod requests;
mod shared;
mod stories;
#[path = "../../../core/run/tests/story/mod.rs"]
mod story;
mod told;
#[allow(dead_code, unused_imports, reason = "the run's own tests use all of it")]
#[path = "../../../core/run/tests/world/mod.rs"]
mod world;
