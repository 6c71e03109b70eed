//! How things are put in words: times, states, results, texts from elsewhere made safe to show.

use std::time::Duration;

use proto::v1;
use proto::v1::content::Body;

/// Characters of a result on the line of the outcome.
const BRIEF_CHARS_MAX: usize = 100;

/// Columns of a bar of progress.
const METER_COLUMNS: usize = 20;
/// Characters of a short id before and after those that are left out.
const SHORT_HEAD: usize = 7;
const SHORT_DIGITS: usize = 8;

/// The name of an enum's value without its prefix, as `requires_action`.
pub(crate) fn word(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_lowercase()
}

pub(crate) fn run_status(status: v1::RunStatus) -> String {
    word(status.as_str_name(), "RUN_STATUS_")
}

/// The status of a listed run, and how many of its calls did not complete although it did.
pub(crate) fn summary_status(run: &v1::RunSummary) -> String {
    let status = run_status(run.status());
    let is_wrong = |state| matches!(state, v1::CallState::Failed | v1::CallState::Cancelled | v1::CallState::Expired);
    let wrong: Vec<_> = run.calls.iter().map(v1::CallSummary::state).filter(|state| is_wrong(*state)).collect();
    let Some(first) = wrong.first().filter(|_| run.status() == v1::RunStatus::Completed) else { return status };
    let how = if wrong.iter().all(|state| state == first) { call_state(*first) } else { "did not".to_owned() };
    format!("{status}, {} {how}", wrong.len())
}

/// An id of a run, with the digits that no other run is likely to end with.
pub(crate) fn short_id(run_id: &str) -> String {
    let digits: Vec<char> = run_id.chars().collect();
    let Some(rest) = digits.len().checked_sub(SHORT_DIGITS).filter(|rest| *rest > SHORT_HEAD) else {
        return run_id.to_owned();
    };
    format!("{}…{}", digits[..SHORT_HEAD].iter().collect::<String>(), digits[rest..].iter().collect::<String>())
}

/// JSON with line breaks and indentation. Nothing else of it is changed: the order of its members, the digits of its
/// numbers and its texts stay as they are.
pub(crate) fn indented(json: &str) -> String {
    if serde_json::from_str::<serde::de::IgnoredAny>(json).is_err() {
        return json.to_owned();
    }
    let (mut out, mut depth, mut is_text, mut is_escaped) = (String::new(), 0_usize, false, false);
    let mut letters = json.chars().filter(|letter| !letter.is_control()).peekable();
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.push_str(&"  ".repeat(depth));
    };
    while let Some(letter) = letters.next() {
        if is_text {
            is_text = is_escaped || letter != '"';
            is_escaped = !is_escaped && letter == '\\';
            out.push(letter);
            continue;
        }
        match letter {
            ' ' => {}
            '{' | '[' => {
                out.push(letter);
                while letters.next_if_eq(&' ').is_some() {}
                if let Some(end) = letters.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(end);
                } else {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(letter);
            }
            ',' => {
                out.push(',');
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            letter => {
                is_text = letter == '"';
                out.push(letter);
            }
        }
    }
    out
}

pub(crate) fn call_state(state: v1::CallState) -> String {
    word(state.as_str_name(), "CALL_STATE_")
}

pub(crate) fn error_kind(kind: v1::CallErrorKind) -> String {
    word(kind.as_str_name(), "CALL_ERROR_KIND_")
}

/// As short as it is still useful: `12 ms`, `2.3 s`, `4 min 10 s`, `5 min`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match duration.as_millis() {
        millis @ 0..1000 => format!("{millis} ms"),
        millis @ 1000..60_000 if millis % 1000 == 0 => format!("{seconds} s"),
        1000..60_000 => format!("{:.1} s", duration.as_secs_f64()),
        60_000..3_600_000 if seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        60_000..3_600_000 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600_000.. => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// How much of something is done, as a bar and in percent.
pub(crate) fn meter(done: u64, of: u64) -> String {
    let (done, of) = (u128::from(done.min(of.max(1))), u128::from(of.max(1)));
    let full = usize::try_from(done * METER_COLUMNS as u128 / of).unwrap_or(METER_COLUMNS);
    format!("{}{} {:>3} %", "█".repeat(full), "░".repeat(METER_COLUMNS - full), done * 100 / of)
}

/// `1 call`, `2 calls`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Text from a tool or a model, without the characters that could move the cursor, paint over our own words, or change
/// the order in which a terminal shows the others.
pub(crate) fn harmless(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    // Joiners are a part of the writing of some languages, and of some emoji.
    let is_unsafe = |c: char| match c {
        '\n' | '\t' | '\u{200c}' | '\u{200d}' => false,
        c => c.is_control() || is_invisible(c),
    };
    text.chars().map(|c| if is_unsafe(c) { '\u{fffd}' } else { c }).collect()
}

/// Whether a character has no width and changes how others are shown: marks of the writing direction, joiners, tags,
/// and separators that some terminals take for line breaks.
fn is_invisible(letter: char) -> bool {
    matches!(letter,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Text from elsewhere as one line on which every character can be seen: control characters as their pictures, such as
/// `␛` for escape, and invisible characters as `\u{202e}`. At most `chars_max` characters; what was cut is marked.
pub(crate) fn visible(text: &str, chars_max: usize) -> String {
    let mut shown = String::new();
    let mut count = 0;
    for letter in text.chars() {
        if count >= chars_max {
            shown.push('…');
            break;
        }
        count += push_visible(&mut shown, letter);
    }
    shown
}

/// Adds a character as [`visible`] shows it, and returns how many characters that are.
pub(crate) fn push_visible(shown: &mut String, letter: char) -> usize {
    match letter {
        '\t' => {
            shown.push_str("    ");
            4
        }
        '\0'..='\x1f' => {
            // Unicode has the pictures of these characters in their order.
            shown.push(char::from_u32(0x2400 + u32::from(letter)).unwrap_or('\u{fffd}'));
            1
        }
        '\x7f' => {
            shown.push('␡');
            1
        }
        letter if letter.is_control() || is_invisible(letter) => {
            let escaped = letter.escape_unicode().to_string();
            shown.push_str(&escaped);
            escaped.len()
        }
        letter => {
            shown.push(letter);
            1
        }
    }
}

/// Content as text for people; bytes are only named.
pub(crate) fn content(content: &v1::Content) -> String {
    match &content.body {
        Some(Body::Text(text) | Body::Json(text)) => harmless(text),
        Some(Body::Object(object)) => harmless(&object.preview),
        Some(Body::Data(data)) => format!("({}, {} bytes)", harmless(&data.media_type), data.data.len()),
        None => String::new(),
    }
}

pub(crate) fn contents(contents: &[v1::Content]) -> String {
    contents.iter().map(content).collect::<Vec<_>>().join("\n")
}

/// The first line of a text, shortened to fit on a line with other text.
pub(crate) fn brief(text: &str) -> String {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let line = lines.next().unwrap_or_default().trim();
    let mut brief: String = line.chars().take(BRIEF_CHARS_MAX).collect();
    if brief.len() < line.len() || lines.next().is_some() {
        brief.push('…');
    }
    brief
}

/// Whether nothing of a text is lost when only its brief form is shown.
pub(crate) fn is_brief(text: &str) -> bool {
    !brief(text).ends_with('…')
}

/// That a call was approved, with the arguments that took the place of its own.
pub(crate) fn was_approved(approved: &v1::CallApproved) -> String {
    if approved.arguments.is_empty() {
        return "was approved".to_owned();
    }
    format!("was approved with other arguments: {}", brief(&harmless(&approved.arguments)))
}

/// An error with its kind.
pub(crate) fn error(error: &v1::CallError) -> String {
    format!("{}: {}", error_kind(error.kind()), harmless(&error.message))
}

pub(crate) fn progress(progress: &v1::Progress) -> String {
    let v1::Progress { done, total, message } = progress;
    let share = match total {
        Some(total) if *total > 0.0 => format!("{:.0}%", 100.0 * done / total),
        Some(_) | None => format!("{done}"),
    };
    format!("{share} {}", harmless(message)).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_as_short_as_they_are_useful() {
        let text = |millis| duration(Duration::from_millis(millis));
        assert_eq!([text(0), text(999)], ["0 ms", "999 ms"]);
        assert_eq!([text(2_340), text(59_900), text(10_000)], ["2.3 s", "59.9 s", "10 s"]);
        assert_eq!([text(250_000), text(300_000), text(7_260_000)], ["4 min 10 s", "5 min", "2 h 1 min"]);
    }

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(harmless("a\x1b[2Jb\tc\r\nd\re"), "a\u{fffd}[2Jb\tc\nd\ne");
    }

    #[test]
    fn characters_that_change_the_order_of_others_do_not_reach_the_terminal() {
        assert_eq!(harmless("a\u{202e}b\u{200b}c\u{2028}d"), "a\u{fffd}b\u{fffd}c\u{fffd}d");
        assert_eq!(harmless("日本 é"), "日本 é");
    }

    #[test]
    fn what_cannot_be_seen_is_shown_by_a_picture_or_its_number() {
        assert_eq!(visible("\x1b[2J\r\n\x7f\0", 100), "␛[2J␍␊␡␀");
        assert_eq!(visible("a\u{202e}b\u{9b}c\td", 100), "a\\u{202e}b\\u{9b}c    d");
        assert_eq!(visible("abcdef", 3), "abc…");
        assert_eq!(visible("日本", 2), "日本");
    }

    #[test]
    fn indented_json_keeps_its_digits_its_order_and_its_texts() {
        let json = r#"{"b":1.10,"a":["x, {y}\\\"",[],{}],"c":{"d":null}}"#;
        let lines = [
            "{",
            r#"  "b": 1.10,"#,
            r#"  "a": ["#,
            r#"    "x, {y}\\\"","#,
            "    [],",
            "    {}",
            "  ],",
            r#"  "c": {"#,
            r#"    "d": null"#,
            "  }",
            "}",
        ];
        assert_eq!(indented(json), lines.join("\n"));
        assert_eq!(indented(&lines.join("\n")), lines.join("\n"));
        assert_eq!(indented("no {json}"), "no {json}");
    }

    #[test]
    fn a_meter_is_never_longer_than_its_bar() {
        assert_eq!(meter(1, 4), "█████░░░░░░░░░░░░░░░  25 %");
        assert_eq!(meter(9, 3), format!("{} 100 %", "█".repeat(20)));
        assert_eq!(meter(0, 0), format!("{}   0 %", "░".repeat(20)));
        assert_eq!(meter(u64::MAX, u64::MAX), format!("{} 100 %", "█".repeat(20)));
    }

    #[test]
    fn a_short_id_has_the_end_of_the_id() {
        assert_eq!(short_id("run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f"), "run_0b_…7c8d9e0f");
        assert_eq!(short_id("run_1"), "run_1");
    }

    #[test]
    fn a_run_that_completed_tells_of_calls_that_failed() {
        let call = |state: v1::CallState| v1::CallSummary { state: state.into(), ..v1::CallSummary::default() };
        let run = |states: &[v1::CallState]| v1::RunSummary {
            status: v1::RunStatus::Completed.into(),
            calls: states.iter().map(|state| call(*state)).collect(),
            ..v1::RunSummary::default()
        };
        let (good, bad, gone) = (v1::CallState::Completed, v1::CallState::Failed, v1::CallState::Expired);
        assert_eq!(summary_status(&run(&[good])), "completed");
        assert_eq!(summary_status(&run(&[good, bad])), "completed, 1 failed");
        assert_eq!(summary_status(&run(&[gone, bad])), "completed, 2 did not");
    }

    #[test]
    fn what_does_not_fit_a_line_is_marked() {
        assert_eq!(brief("\n one \n"), "one");
        assert_eq!(brief("one\ntwo"), "one…");
        assert_eq!(brief(&"é".repeat(200)).chars().count(), BRIEF_CHARS_MAX + 1);
    }
}
