//! The native part of the npm package `toolyard`: hosts tools that are written in JavaScript, by the same worker and
//! the same test kit as tools in Rust. It passes calls to JavaScript, and output and results back; everything else is
//! done by the crates below it. `src/native.ts` of the package has its types.

mod ask;
mod call;
mod content;
mod error;
mod file;
mod testing;
mod tools;
mod watch;
mod worker;
