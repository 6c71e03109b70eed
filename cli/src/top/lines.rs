//! Lines of a run's output: the newest ones, as many as a person can look through. Text from tools is made visible
//! here, so that nothing that is drawn can act on the terminal.

use std::collections::VecDeque;

use crate::words::{push_visible, visible};

/// Lines that are kept; older ones leave.
pub(super) const LINES_MAX: usize = 10_000;
/// Characters of a line that are kept.
pub(super) const LINE_CHARS_MAX: usize = 2_000;
/// A sequence that sets colours is at most so long.
const COLOURS_MAX: usize = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The call that speaks from here on.
    Head,
    Output,
    Stderr,
    Progress,
    Note,
    Good,
    Bad,
}

/// Where output comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    /// The position of the call.
    pub(super) call: Option<usize>,
    pub(super) attempt: u32,
    pub(super) channel: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) call: Option<usize>,
    pub(super) kind: Kind,
    /// Safe to draw.
    pub(super) text: String,
    /// The attempt that made it was repeated, so that it is no part of the output any more.
    pub(super) is_void: bool,
    /// Characters that did not fit.
    pub(super) cut: u64,
    attempt: u32,
    chars: usize,
}

#[derive(Debug, Default)]
pub(super) struct Lines {
    kept: VecDeque<Line>,
    /// Lines that have left.
    pub(super) gone: u64,
    /// Whose text the last line may still get.
    unended: Option<Source>,
    /// The beginning of a sequence that sets colours, whose end is in the next piece.
    colours: String,
}

impl Lines {
    pub(super) fn all(&self) -> impl Iterator<Item = &Line> {
        self.kept.iter()
    }

    pub(super) fn note(&mut self, call: Option<usize>, text: &str) {
        self.add(call, Kind::Note, text);
    }

    /// Adds lines of the console's own.
    pub(super) fn add(&mut self, call: Option<usize>, kind: Kind, text: &str) {
        self.leave();
        for line in text.lines() {
            self.push(call, kind, 0, visible(line, LINE_CHARS_MAX));
        }
    }

    /// Adds a line that the next one replaces.
    pub(super) fn progress(&mut self, source: &Source, text: &str) {
        self.leave();
        self.replace_progress(source);
        self.push(source.call, Kind::Progress, source.attempt, visible(text, LINE_CHARS_MAX));
    }

    /// Adds text of a call. A line may come in pieces.
    pub(super) fn text(&mut self, source: &Source, text: &str) {
        if self.unended.as_ref().is_some_and(|unended| unended != source) {
            self.leave();
        }
        self.replace_progress(source);
        for letter in text.chars() {
            self.letter(source, letter);
        }
    }

    /// Marks the lines of an attempt whose output was withdrawn.
    pub(super) fn withdraw(&mut self, call: Option<usize>, attempt: u32) {
        self.leave();
        let of_attempt = |line: &&mut Line| line.call == call && line.attempt == attempt;
        self.kept.iter_mut().filter(of_attempt).for_each(|line| line.is_void = true);
    }

    /// Removes the last line if it is progress of the same call.
    fn replace_progress(&mut self, source: &Source) {
        if self.kept.back().is_some_and(|last| last.kind == Kind::Progress && last.call == source.call) {
            self.kept.pop_back();
        }
    }

    fn letter(&mut self, source: &Source, letter: char) {
        if letter == '\x1b' || !self.colours.is_empty() {
            return self.escape(source, letter);
        }
        match letter {
            '\n' => {
                self.line(source);
                self.unended = None;
            }
            // The end of a line as some systems write it; alone it is shown.
            '\r' => self.colours.push(letter),
            letter => self.put(source, letter),
        }
    }

    /// A letter of a sequence that may set colours, which is dropped, or may do anything else, which is shown.
    fn escape(&mut self, source: &Source, letter: char) {
        let begun = std::mem::take(&mut self.colours);
        let goes_on = match begun.as_str() {
            "" => letter == '\x1b',
            "\r" => false,
            "\x1b" => letter == '[',
            _ => letter.is_ascii_digit() || matches!(letter, ';' | ':'),
        };
        if goes_on && begun.len() < COLOURS_MAX {
            self.colours = begun;
            self.colours.push(letter);
            return;
        }
        let sets_colours = letter == 'm' && begun.len() >= 2;
        let ends_line = letter == '\n' && begun == "\r";
        if !sets_colours && !ends_line {
            begun.chars().for_each(|letter| self.put(source, letter));
        }
        if !sets_colours {
            self.letter(source, letter);
        }
    }

    /// Adds a character to the last line, or begins one with it.
    fn put(&mut self, source: &Source, letter: char) {
        self.line(source);
        let Some(line) = self.kept.back_mut() else { return };
        if line.chars < LINE_CHARS_MAX {
            line.chars += push_visible(&mut line.text, letter);
        } else {
            line.cut += 1;
        }
    }

    /// Begins a line, unless one is open.
    fn line(&mut self, source: &Source) {
        if self.unended.is_some() {
            return;
        }
        let kind = if source.channel == "stderr" { Kind::Stderr } else { Kind::Output };
        let channel = match source.channel.as_str() {
            "" | "stdout" | "stderr" => String::new(),
            other => format!("{}: ", visible(other, 40)),
        };
        self.push(source.call, kind, source.attempt, channel);
        self.unended = Some(source.clone());
    }

    /// Ends the line that is open, because a line of something else follows.
    fn leave(&mut self) {
        let begun = std::mem::take(&mut self.colours);
        if let Some(source) = self.unended.clone() {
            begun.chars().for_each(|letter| self.put(&source, letter));
        }
        self.unended = None;
    }

    fn push(&mut self, call: Option<usize>, kind: Kind, attempt: u32, text: String) {
        let chars = text.chars().count();
        self.kept.push_back(Line { call, kind, text, is_void: false, cut: 0, attempt, chars });
        if self.kept.len() > LINES_MAX {
            self.kept.pop_front();
            self.gone += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(channel: &str) -> Source {
        Source { call: Some(0), attempt: 1, channel: channel.to_owned() }
    }

    fn texts(lines: &Lines) -> Vec<&str> {
        lines.all().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn a_line_may_come_in_pieces() {
        let mut lines = Lines::default();
        for piece in ["one\ntw", "o\n", "\nfour"] {
            lines.text(&source("stdout"), piece);
        }
        assert_eq!(texts(&lines), ["one", "two", "", "four"]);
    }

    #[test]
    fn another_channel_begins_a_line_of_its_own() {
        let mut lines = Lines::default();
        lines.text(&source("stdout"), "out");
        lines.text(&source("stderr"), "err");
        lines.text(&source("log"), "said");
        assert_eq!(texts(&lines), ["out", "err", "log: said"]);
        assert_eq!(lines.all().nth(1).map(|line| line.kind), Some(Kind::Stderr));
    }

    #[test]
    fn colours_are_dropped_and_every_other_sequence_is_shown() {
        let mut lines = Lines::default();
        for piece in ["\x1b[1;31mred\x1b", "[0m\x1b[2Jno\x1b]0;title\x07\n", "over\rwritten\r\nnext\n"] {
            lines.text(&source(""), piece);
        }
        assert_eq!(texts(&lines), ["red␛[2Jno␛]0;title␇", "over␍written", "next"]);
    }

    #[test]
    fn a_sequence_without_an_end_is_shown_when_its_line_ends() {
        let mut lines = Lines::default();
        lines.text(&source(""), "a\x1b[31");
        lines.note(None, "note");
        assert_eq!(texts(&lines), ["a␛[31", "note"]);
    }

    #[test]
    fn a_line_of_ten_megabytes_is_cut_and_what_is_missing_is_counted() {
        let mut lines = Lines::default();
        lines.text(&source(""), &"x".repeat(10_000_000));
        lines.text(&source(""), "\nnext");
        let first = lines.all().next().expect("a line");
        assert_eq!((first.text.len(), first.cut), (LINE_CHARS_MAX, 10_000_000 - LINE_CHARS_MAX as u64));
        assert_eq!(texts(&lines)[1], "next");
    }

    #[test]
    fn old_lines_leave_and_are_counted() {
        let mut lines = Lines::default();
        lines.text(&source(""), &"x\n".repeat(LINES_MAX + 3));
        assert_eq!((lines.all().count(), lines.gone), (LINES_MAX, 3));
    }

    #[test]
    fn the_output_of_an_attempt_is_marked_when_it_is_withdrawn() {
        let mut lines = Lines::default();
        lines.text(&source(""), "first\n");
        lines.withdraw(Some(0), 1);
        lines.text(&Source { attempt: 2, ..source("") }, "second\n");
        let void: Vec<bool> = lines.all().map(|line| line.is_void).collect();
        assert_eq!(void, [true, false]);
    }

    #[test]
    fn progress_gives_way_to_what_follows() {
        let mut lines = Lines::default();
        lines.progress(&source(""), "10%");
        lines.progress(&source(""), "20%");
        assert_eq!(texts(&lines), ["20%"]);
        lines.text(&source(""), "done\n");
        assert_eq!(texts(&lines), ["done"]);
    }
}
