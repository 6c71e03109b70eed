//! The beginning of a value that is too large to be shown, and a note about the missing part.

/// As much of a text as fits, in whole characters.
#[must_use]
pub fn beginning(text: &str, bytes_max: usize) -> &str {
    let mut end = bytes_max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The beginning of a part that is `size` bytes, and a note that it was cut.
#[must_use]
pub fn preview(shown: &str, size: usize, whole: Option<&str>) -> String {
    let gap = if shown.is_empty() { "" } else { "\n\n" };
    let whole = whole.map_or_else(String::new, |whole| format!("; {whole}"));
    format!("{shown}{gap}[the result was cut here: {} of {size} bytes are shown{whole}]", shown.len())
}
