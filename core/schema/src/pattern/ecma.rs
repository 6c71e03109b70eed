//! Regular expressions of ECMA-262 in the syntax of the `regex` crate, in one pass over their text.

use super::InvalidPattern;

const SPACE: &str = r"\t\n\x0B\x0C\r\x{FEFF}\x{2028}\x{2029}\p{Zs}";

/// Translates a pattern. Unknown syntax is left unchanged, and the parser rejects it.
pub(super) fn translate(pattern: &str) -> Result<String, InvalidPattern> {
    let mut translated = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern;
    let mut in_class = false;
    while let Some(char) = rest.chars().next() {
        let after = &rest[char.len_utf8()..];
        rest = match char {
            '\\' => escape(after, in_class, &mut translated)?,
            '[' if in_class => {
                translated.push_str(r"\[");
                after
            }
            '[' => {
                in_class = true;
                translated.push('[');
                // A `]` that follows at once ends the class in ECMA-262, and matches nothing or everything.
                if let Some(after) = after.strip_prefix("^]") {
                    in_class = false;
                    translated.push_str(r"\s\S]");
                    after
                } else if let Some(after) = after.strip_prefix(']') {
                    in_class = false;
                    translated.push_str(r"^\s\S]");
                    after
                } else {
                    after
                }
            }
            ']' => {
                in_class = false;
                translated.push(']');
                after
            }
            // Two of them stand for operations on classes.
            '&' | '~' if in_class => {
                translated.push('\\');
                translated.push(char);
                after
            }
            '-' if in_class && after.starts_with('-') => {
                translated.push_str(r"\-");
                after
            }
            '.' if !in_class => {
                translated.push_str(r"[^\n\r\x{2028}\x{2029}]");
                after
            }
            '(' if !in_class => {
                for (start, what) in
                    [("?=", "lookahead"), ("?!", "lookahead"), ("?<=", "lookbehind"), ("?<!", "lookbehind")]
                {
                    if after.starts_with(start) {
                        return Err(InvalidPattern::Unsupported(what));
                    }
                }
                translated.push('(');
                after
            }
            char => {
                translated.push(char);
                after
            }
        };
    }
    Ok(translated)
}

/// Translates an escape; returns the text behind it.
fn escape<'a>(text: &'a str, in_class: bool, translated: &mut String) -> Result<&'a str, InvalidPattern> {
    let Some(char) = text.chars().next() else {
        translated.push('\\');
        return Ok(text);
    };
    let after = &text[char.len_utf8()..];
    let class = |inner: &str, negated: bool| match (in_class, negated) {
        (true, false) => inner.to_owned(),
        (_, true) => format!("[^{inner}]"),
        (false, false) => format!("[{inner}]"),
    };
    let plain = match char {
        'd' | 'D' => class("0-9", char == 'D'),
        'w' | 'W' => class("A-Za-z0-9_", char == 'W'),
        's' | 'S' => class(SPACE, char == 'S'),
        'b' if in_class => r"\x08".to_owned(),
        '0' if !after.starts_with(|next: char| next.is_ascii_digit()) => r"\x00".to_owned(),
        '1'..='9' | 'k' if !in_class => return Err(InvalidPattern::Unsupported("a backreference")),
        'c' => match after.chars().next().filter(char::is_ascii_alphabetic) {
            Some(letter) => {
                translated.push_str(&format!(r"\x{:02X}", letter as u32 % 32));
                return Ok(&after[1..]);
            }
            None => r"\c".to_owned(),
        },
        'u' => {
            if let Some((both, after)) = surrogates(after) {
                translated.push_str(&format!(r"\x{{{:X}}}", u32::from(both)));
                return Ok(after);
            }
            r"\u".to_owned()
        }
        '<' | '>' => char.to_string(),
        char if char.is_ascii() => format!("\\{char}"),
        char => char.to_string(),
    };
    translated.push_str(&plain);
    Ok(after)
}

/// A character that is written as two halves, behind the first `\u`.
fn surrogates(text: &str) -> Option<(char, &str)> {
    let half = |digits: &str| u16::from_str_radix(digits, 16).ok();
    let (first, second) = (half(text.get(..4)?)?, text.get(4..)?.strip_prefix(r"\u")?);
    let both = [first, half(second.get(..4)?)?];
    let char = char::decode_utf16(both).next()?.ok()?;
    (char.len_utf16() == 2).then_some((char, &second[4..]))
}
