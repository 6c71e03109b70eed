//! How things are put in words: times, states, results, texts from elsewhere made safe to show.

use std::time::Duration;

use proto::v1;
use proto::v1::content::Body;

/// Characters of a result on the line of the outcome.
const BRIEF_CHARS_MAX: usize = 100;

/// The name of an enum's value without its prefix, as `requires_action`.
pub(crate) fn word(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_lowercase()
}

pub(crate) fn run_status(status: v1::RunStatus) -> String {
    word(status.as_str_name(), "RUN_STATUS_")
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

/// `1 call`, `2 calls`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Text from a tool or a model, without the control characters that could move the cursor or paint over our own words.
pub(crate) fn harmless(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    text.chars().map(|c| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c }).collect()
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
    fn what_does_not_fit_a_line_is_marked() {
        assert_eq!(brief("\n one \n"), "one");
        assert_eq!(brief("one\ntwo"), "one…");
        assert_eq!(brief(&"é".repeat(200)).chars().count(), BRIEF_CHARS_MAX + 1);
    }
}
