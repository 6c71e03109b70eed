//! Output of tools for a terminal: colours stay, and everything else that would act on the terminal is made visible.

use crate::words::push_visible;

/// A sequence that is let through is at most so long.
const SEQUENCE_MAX: usize = 40;

/// A stream of text, piece by piece.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    /// The beginning of a sequence whose end is in the next piece.
    begun: String,
}

impl Guard {
    /// The text as the terminal may have it.
    pub(crate) fn pass(&mut self, text: &str) -> String {
        let mut shown = String::with_capacity(text.len());
        for letter in text.chars() {
            if self.begun.is_empty() && letter != '\x1b' {
                push(&mut shown, letter);
            } else {
                self.sequence(&mut shown, letter);
            }
        }
        shown
    }

    /// The rest, when nothing follows.
    pub(crate) fn end(&mut self) -> String {
        let mut shown = String::new();
        std::mem::take(&mut self.begun).chars().for_each(|letter| push(&mut shown, letter));
        shown
    }

    fn sequence(&mut self, shown: &mut String, letter: char) {
        let goes_on = match self.begun.as_str() {
            "" => letter == '\x1b',
            "\x1b" => letter == '[',
            _ => letter.is_ascii_digit() || matches!(letter, ';' | ':'),
        };
        if goes_on && self.begun.len() < SEQUENCE_MAX {
            self.begun.push(letter);
            return;
        }
        // Colours, and the end of a line that is painted again, as progress is.
        if self.begun.len() >= 2 && matches!(letter, 'm' | 'K') {
            shown.push_str(&std::mem::take(&mut self.begun));
            shown.push(letter);
            return;
        }
        shown.push_str(&self.end());
        match letter {
            '\x1b' => self.begun.push(letter),
            letter => push(shown, letter),
        }
    }
}

fn push(shown: &mut String, letter: char) {
    match letter {
        '\n' | '\t' | '\r' | '\x08' | '\u{200c}' | '\u{200d}' => shown.push(letter),
        letter => {
            push_visible(shown, letter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(pieces: &[&str]) -> String {
        let mut guard = Guard::default();
        let mut shown: String = pieces.iter().map(|piece| guard.pass(piece)).collect();
        shown.push_str(&guard.end());
        shown
    }

    #[test]
    fn colours_and_progress_pass_also_if_they_are_cut() {
        let text = "\x1b[1;31mred\x1b[0m 10%\r\x1b[K20%\tdone\x08\n";
        assert_eq!(passed(&[text]), text);
        let pieces: Vec<String> = text.chars().map(String::from).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        assert_eq!(passed(&pieces), text);
    }

    #[test]
    fn titles_moves_of_the_cursor_and_marks_of_direction_are_shown() {
        assert_eq!(passed(&["\x1b]0;owned\x07\x1b[2J\x1b[5A\x1b"]), "␛]0;owned␇␛[2J␛[5A␛");
        assert_eq!(passed(&["a\u{202e}b\u{9b}31m"]), "a\\u{202e}b\\u{9b}31m");
        assert_eq!(passed(&[&format!("\x1b[{}m", "1;".repeat(100))]).matches('␛').count(), 1);
    }
}
