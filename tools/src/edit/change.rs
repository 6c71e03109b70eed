//! The new text of a file, made of the old one.

use diffy::Patch;

use super::Replacement;
use toolyard_tool::ToolError;

/// Lines that an error names where a text occurs.
const NAMED_MAX: usize = 5;

/// How the lines of a file end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// With a line feed, or not all alike: the text is taken byte by byte.
    AsItIs,
    /// All with carriage return and line feed. Models write line feeds, so the file is edited as if it had those.
    CrLf,
}

impl Ending {
    pub(super) fn of(text: &str) -> Self {
        let (feeds, both) = (text.matches('\n').count(), text.matches("\r\n").count());
        if feeds > 0 && feeds == both { Self::CrLf } else { Self::AsItIs }
    }

    /// The text with line feeds alone.
    pub(super) fn plain(self, text: &str) -> String {
        match self {
            Self::AsItIs => text.to_owned(),
            Self::CrLf => text.replace("\r\n", "\n"),
        }
    }

    /// A text with line feeds as it is written to the file.
    pub(super) fn apply(self, text: String) -> String {
        match self {
            Self::AsItIs => text,
            Self::CrLf => text.replace('\n', "\r\n"),
        }
    }
}

/// The text after all replacements.
pub(super) fn replaced(text: &str, edits: &[Replacement], ending: Ending, bytes_max: u64) -> Result<String, ToolError> {
    let mut text = text.to_owned();
    for (edit, number) in edits.iter().zip(0..) {
        let (old, new) = (ending.plain(&edit.old_text), ending.plain(&edit.new_text));
        let place = format!("/edits/{number}/old_text");
        if old == new {
            return Err(ToolError::bad_input(format!("/edits/{number}/new_text"), "it is the same as old_text"));
        }
        let count = text.matches(&old).count();
        if count == 0 {
            return Err(ToolError::bad_input(place, absent(&text, &old, number > 0)));
        }
        if count > 1 && !edit.replace_all {
            let message = format!(
                "it occurs {count} times, in {}: add lines around it until it is unique, or set replace_all",
                lines(&text, &old)
            );
            return Err(ToolError::bad_input(place, message));
        }
        let grown = text.len() - count * old.len() + count.saturating_mul(new.len());
        if u64::try_from(grown).is_ok_and(|grown| grown > bytes_max) {
            return Err(ToolError::bad_input(place, format!("the file would have {grown} bytes")));
        }
        text = text.replace(&old, &new);
    }
    Ok(text)
}

/// Why a text was not found, with what is most often the reason.
fn absent(text: &str, old: &str, is_later: bool) -> String {
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let first = old.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let near = text.lines().zip(1..).find(|(line, _)| !first.is_empty() && line.trim() == first);
    let hint = match near {
        Some((_, line)) if squeezed(text).contains(&squeezed(old)) => {
            format!("it is there with other white space, from line {line}")
        }
        Some((_, line)) => format!("its first line is there, in line {line}, and goes on differently"),
        None if is_later => "an edit before may have changed it".to_owned(),
        None => "read the file and copy the text exactly".to_owned(),
    };
    format!("the file does not contain this text: {hint}")
}

fn lines(text: &str, old: &str) -> String {
    let line = |at: usize| text[..at].matches('\n').count() + 1;
    let named: Vec<String> = text.match_indices(old).take(NAMED_MAX).map(|(at, _)| line(at).to_string()).collect();
    let more = if text.matches(old).count() > NAMED_MAX { ", …" } else { "" };
    format!("lines {}{more}", named.join(", "))
}

/// The text after a patch.
pub(super) fn patched(text: &str, patch: &str, ending: Ending) -> Result<String, ToolError> {
    let refused = |why: &str| ToolError::bad_input("/patch", why);
    let plain = ending.plain(patch);
    let parsed = Patch::from_str(&plain).map_err(|error| refused(&format!("it is no unified diff: {error}")))?;
    if parsed.hunks().is_empty() {
        return Err(refused("it has no hunk: a line such as @@ -1,3 +1,4 @@ begins one"));
    }
    if parsed.modified() == Some("/dev/null") {
        return Err(refused("it deletes the file, which edit does not do"));
    }
    diffy::apply(text, &parsed).map_err(|error| {
        refused(&format!(
            "it does not fit the file ({error}): read the file again and make the diff from what is there"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_mixes_its_line_endings_is_taken_as_it_is() {
        assert_eq!(Ending::of("a\r\nb\r\n"), Ending::CrLf);
        assert_eq!(Ending::of("a\r\nb\n"), Ending::AsItIs);
        assert_eq!(Ending::of("a"), Ending::AsItIs);
    }

    #[test]
    fn a_replacement_that_multiplies_the_file_is_refused_before_it_is_made() {
        let edit = Replacement { old_text: "a".to_owned(), new_text: "b".repeat(1_000), replace_all: true };
        let error = replaced(&"a".repeat(1_000), &[edit], Ending::AsItIs, 100_000).unwrap_err();
        assert!(error.message().contains("1000000 bytes"), "{}", error.message());
    }
}
