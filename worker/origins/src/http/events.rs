//! Takes bodies apart that arrive piece by piece: server-sent events, and lines of JSON.

/// Bytes of one event or line.
pub(crate) const EVENT_BYTES_MAX: usize = 1024 * 1024;

/// An event is longer than it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event has more than {bytes_max} bytes")]
pub(crate) struct TooLong {
    bytes_max: usize,
}

/// Cuts bytes into lines. A line ends with LF or CR LF.
#[derive(Debug)]
pub(crate) struct Lines {
    /// The line that is not complete yet.
    begun: Vec<u8>,
    bytes_max: usize,
}

impl Default for Lines {
    fn default() -> Self {
        Self::up_to(EVENT_BYTES_MAX)
    }
}

impl Lines {
    /// Lines of at most this many bytes.
    pub(crate) const fn up_to(bytes_max: usize) -> Self {
        Self { begun: Vec::new(), bytes_max }
    }

    /// The lines that these bytes complete, without their ends.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<Vec<String>, TooLong> {
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.begun.len() + piece.len() > self.bytes_max {
                return Err(TooLong { bytes_max: self.bytes_max });
            }
            self.begun.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                lines.extend(self.rest());
            }
        }
        Ok(lines)
    }

    /// The last line, if it has no end.
    pub(crate) fn rest(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.begun);
        let text = String::from_utf8_lossy(&line);
        (!line.is_empty()).then(|| text.trim_end_matches('\n').trim_end_matches('\r').to_owned())
    }
}

/// A server-sent event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Event {
    /// Empty, or the name that `event:` gives it.
    pub(crate) name: String,
    pub(crate) data: String,
}

/// Makes events of lines.
#[derive(Debug)]
pub(crate) struct Events {
    begun: Event,
    has_data: bool,
    bytes_max: usize,
}

impl Default for Events {
    fn default() -> Self {
        Self::up_to(EVENT_BYTES_MAX)
    }
}

impl Events {
    /// Events of at most this many bytes.
    pub(crate) fn up_to(bytes_max: usize) -> Self {
        Self { begun: Event::default(), has_data: false, bytes_max }
    }

    /// The event that a line completes.
    pub(crate) fn take(&mut self, line: &str) -> Result<Option<Event>, TooLong> {
        let line = line.trim_start_matches('\u{feff}');
        if line.is_empty() {
            let event = std::mem::take(&mut self.begun);
            return Ok(std::mem::take(&mut self.has_data).then_some(event));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if self.begun.data.len() + value.len() > self.bytes_max {
                    return Err(TooLong { bytes_max: self.bytes_max });
                }
                if std::mem::replace(&mut self.has_data, true) {
                    self.begun.data.push('\n');
                }
                self.begun.data.push_str(value);
            }
            "event" => value.clone_into(&mut self.begun.name),
            // Comments, ids and the pause before a reconnection mean nothing here.
            _ => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(pieces: &[&str]) -> Vec<(String, String)> {
        let (mut lines, mut events, mut all) = (Lines::default(), Events::default(), Vec::new());
        for piece in pieces {
            for line in lines.take(piece.as_bytes()).unwrap() {
                all.extend(events.take(&line).unwrap().map(|event| (event.name, event.data)));
            }
        }
        all
    }

    #[test]
    fn events_are_the_same_wherever_their_bytes_are_cut() {
        let text =
            ": hello\nevent: tick\ndata: 1\ndata:2\nid: 7\n\n\ndata: {\"a\":\ndata: 1}\r\n\r\ndata: é\n\ndata: lost";
        let expected = [("tick", "1\n2"), ("", "{\"a\":\n1}"), ("", "é")];
        let expected: Vec<_> = expected.iter().map(|(name, data)| ((*name).to_owned(), (*data).to_owned())).collect();
        assert_eq!(events(&[text]), expected);
        for cut in (1..text.len()).filter(|cut| text.is_char_boundary(*cut)) {
            assert_eq!(events(&[&text[..cut], &text[cut..]]), expected, "cut at {cut}");
        }
    }

    #[test]
    fn a_line_without_end_and_an_event_without_end_are_refused() {
        let mut lines = Lines::default();
        let long = vec![b'x'; EVENT_BYTES_MAX];
        assert_eq!(lines.take(&long), Ok(Vec::new()));
        let too_long = TooLong { bytes_max: EVENT_BYTES_MAX };
        assert_eq!(lines.take(b"x"), Err(too_long));
        let mut events = Events::default();
        let line = format!("data: {}", "x".repeat(EVENT_BYTES_MAX / 2));
        assert_eq!(events.take(&line), Ok(None));
        assert_eq!(events.take(&line), Ok(None));
        assert_eq!(events.take(&line), Err(too_long));
    }

    #[test]
    fn the_last_line_needs_no_end() {
        let mut lines = Lines::default();
        assert_eq!(lines.take(b"a\r\nb"), Ok(vec!["a".to_owned()]));
        assert_eq!(lines.rest(), Some("b".to_owned()));
        assert_eq!(lines.rest(), None);
    }
}
