//! The program as people and scripts use it: real processes, their output and their exit codes.

#![allow(unreachable_pub, reason = "a test binary exports nothing")]

mod agents;
mod calls;
mod completions;
mod context;
mod demo;
mod dev;
mod docs;
mod doctor;
mod examples;
mod fleet;
mod help;
mod hooks;
mod inbox;
mod index;
mod key;
mod log;
mod nats_config;
mod nats_keys;
mod parked;
mod pause;
mod process;
mod runs;
mod schedules;
mod secrets;
mod tail;
mod top;
mod webhooks;
mod why;
