//! The promises, each in a file, proved against real processes through the public API.

#![allow(unreachable_pub, reason = "a test binary exports nothing")]

mod acceptance;
mod acceptance_together;
mod acceptance_tools;
mod admin;
mod agent_children;
mod agent_loop;
mod agent_parents;
mod agent_templates;
mod agents;
mod alerts;
mod approvals;
mod attached;
mod attempts;
mod backends;
mod backup;
mod bad_input;
mod beside;
#[path = "../../tools/tests/bring/mod.rs"]
mod bring;
mod broker_crash;
mod buckets;
mod buckets_away;
mod callers;
mod cancel;
mod client_calls;
mod clock_skew;
mod cluster;
mod collaboration;
mod context;
mod conversation;
mod coordinator_crash;
mod cost;
mod costly;
mod crowd;
mod deadlines;
mod delays;
mod disconnects;
mod doors;
mod drain;
mod drill;
mod eligibility;
mod equal;
mod erasure;
mod export;
mod fair;
mod forged;
mod full_log;
mod functions;
mod gone;
mod history;
mod history_store;
mod hook_ends;
mod hook_notices;
mod hooks;
mod http;
mod http_api;
mod http_batch;
mod http_callers;
mod index;
mod index_tls;
mod intrusion;
mod late;
mod limits;
mod limits_kept;
mod links;
mod listeners;
mod main_job;
mod manifest;
mod many;
mod mcp;
mod mcp_clients;
mod mcp_endpoints;
mod mcp_in;
mod memory;
mod mixed;
mod nested;
mod objects;
mod openai;
mod openai_refused;
mod options;
mod ordering;
mod origins;
mod overviews;
mod ownership;
mod parked;
mod partitions;
mod partitions_history;
mod pauses;
mod permissions;
mod questions;
mod quotas;
mod readers;
mod registry;
mod replaced;
mod requests;
mod required_hooks;
mod resolvers;
mod results;
mod retention;
mod rollout;
mod room;
mod schedules;
mod series;
mod shared;
mod states;
mod tenants;
mod tls;
mod tokens;
mod toolcalling;
mod traces;
mod unexecuted;
mod uploads;
mod webhooks;
mod worker_crash;
mod worker_life;

use harness::check;

/// The program that scenarios start as coordinators and workers.
const FIXTURE: &str = env!("CARGO_BIN_EXE_fixture");

/// A call that says `id-0 id-1 ...`, one piece at a time.
fn count(id: &str, pieces: u32, every_ms: u64) -> proto::v1::NewCall {
    let arguments = serde_json::json!({ "label": id, "pieces": pieces, "every_ms": every_ms });
    harness::call(id, "count", arguments)
}

/// The output of such a call.
fn counted(id: &str, pieces: u32) -> String {
    (0..pieces).map(|piece| format!("{id}-{piece} ")).collect()
}

/// A call that only the client can answer.
fn question(id: &str) -> proto::v1::NewCall {
    harness::call(id, "ask_user", serde_json::json!({ "question": "Which one?" }))
}
