//! Ids: accepted texts, and their round trip.

use std::time::Duration;

use proptest::prelude::*;
use toolyard_run::{CallError, CallId, CallIndex, ErrorKind, PoolId, RunId, Shard, Timestamp, ToolName, limit};

const RUN: &str = "run_0b_0193a7b4c2d07e3f8a1b2c3d4e5f6071";

#[test]
fn a_run_id_tells_its_shard_and_its_age() {
    let id: RunId = RUN.parse().expect("a run id");
    assert_eq!((id.to_string(), id.shard()), (RUN.into(), Shard(0x0b)));
    assert_eq!(id.created_at(), Timestamp(0x0193_a7b4_c2d0));
}

#[test]
fn malformed_run_ids_are_refused() {
    let malformed = [
        "",
        "run_",
        "0b_0193a7b4c2d07e3f8a1b2c3d4e5f6071",
        "run_0193a7b4c2d07e3f8a1b2c3d4e5f6071",
        "run_b_0193a7b4c2d07e3f8a1b2c3d4e5f6071",
        "run_0B_0193a7b4c2d07e3f8a1b2c3d4e5f6071",
        "run_0b_0193A7B4C2D07E3F8A1B2C3D4E5F6071",
        "run_0b_0193a7b4-c2d0-7e3f-8a1b-2c3d4e5f6071",
        "run_0b_0193a7b4c2d04e3f8a1b2c3d4e5f6071",
        "run_0b_0193a7b4c2d07e3f8a1b2c3d4e5f607",
        "run_0b_0193a7b4c2d07e3f8a1b2c3d4e5f6071 ",
    ];
    for text in malformed {
        assert!(text.parse::<RunId>().is_err(), "{text:?}");
    }
}

#[test]
fn a_call_index_has_one_spelling() {
    for (text, index) in [("0", 0), ("7", 7), ("127", 127), ("65535", u16::MAX)] {
        assert_eq!(text.parse(), Ok(CallIndex(index)));
        assert_eq!(CallIndex(index).to_string(), text);
    }
    for text in ["", "00", "01", "+1", "-1", " 1", "1 ", "65536", "_", "x"] {
        assert!(text.parse::<CallIndex>().is_err(), "{text:?}");
    }
}

#[test]
fn names_are_held_to_their_letters_and_length() {
    let pools = [("gpu-1_b", true), ("", false), ("a.b", false), ("a b", false), ("a*", false), (">", false)];
    for (text, taken) in pools {
        assert_eq!(text.parse::<PoolId>().is_ok(), taken, "{text:?}");
    }
    assert!("fs.read_file-2".parse::<ToolName>().is_ok());
    assert!("fs/read".parse::<ToolName>().is_err());
    assert!("call 1: any text, even ünïcode".parse::<CallId>().is_ok());
    assert!("line\nbreak".parse::<CallId>().is_err());
    let length = |n: usize| "x".repeat(n);
    assert!(length(limit::TOKEN_BYTES_MAX).parse::<PoolId>().is_ok());
    assert!(length(limit::TOKEN_BYTES_MAX + 1).parse::<PoolId>().is_err());
    assert!(length(limit::CALL_ID_BYTES_MAX + 1).parse::<CallId>().is_err());
    assert!("ü".repeat(limit::CALL_ID_BYTES_MAX / 2 + 1).parse::<CallId>().is_err(), "bytes count, not characters");
}

#[test]
fn a_complaint_quotes_only_the_beginning_of_a_long_text() {
    let complaint = "ü".repeat(10_000).parse::<PoolId>().expect_err("too long");
    assert_eq!((complaint.text.chars().count(), complaint.kind), (64, "pool name"));
}

#[test]
fn an_error_always_says_something_and_never_too_much() {
    assert_eq!(CallError::new(ErrorKind::ToolPanicked, " \n").message, "ToolPanicked, without a message");
    let whole = "x".repeat(limit::ERROR_BYTES_MAX);
    assert_eq!(CallError::new(ErrorKind::ToolFailed, whole.clone()).message, whole);
    for letter in ["x", "ü", "€", "🦀"] {
        let cut = CallError::new(ErrorKind::ToolFailed, letter.repeat(limit::ERROR_BYTES_MAX + 1)).message;
        assert!(cut.len() <= limit::ERROR_BYTES_MAX && cut.len() > limit::ERROR_BYTES_MAX - 4);
        assert!(cut.ends_with(" … (cut)"));
    }
}

#[test]
fn time_neither_wraps_nor_turns_negative() {
    assert_eq!(Timestamp(u64::MAX - 1).after(Duration::MAX), Timestamp(u64::MAX));
    assert_eq!(Timestamp(5).since(Timestamp(9)), Duration::ZERO);
    assert_eq!(Timestamp(9).since(Timestamp(5)), Duration::from_millis(4));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_a_parser_panic(text in any::<String>()) {
        prop_assert!(text.parse::<RunId>().is_ok_and(|id| id.to_string() == text) || text.parse::<RunId>().is_err());
        prop_assert!(text.parse::<Shard>().is_ok_and(|id| id.to_string() == text) || text.parse::<Shard>().is_err());
        prop_assert!(text.parse::<PoolId>().is_ok_and(|id| id.as_str() == text) || text.parse::<PoolId>().is_err());
        prop_assert!(text.parse::<CallId>().is_ok_and(|id| id.as_str() == text) || text.parse::<CallId>().is_err());
        let index = text.parse::<CallIndex>();
        prop_assert!(index.is_err() || index.is_ok_and(|index| index.to_string() == text));
    }

    #[test]
    fn a_run_id_is_read_as_it_is_written(shard in any::<u8>(), text in "[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}") {
        let written = format!("run_{shard:02x}_{text}");
        prop_assert_eq!(written.parse::<RunId>().map(|id| (id.to_string(), id.shard())), Ok((written, Shard(shard))));
    }
}
