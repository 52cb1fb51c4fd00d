//! Text of strangers on operators' terminals.

/// Returns `text` with U+FFFD for every character that could change how what stands beside it is
/// shown, or could not be seen.
///
/// Replaces all characters but letters, digits, punctuation, symbols and the plain space: control characters
/// (terminals obey them), format characters (marks, embeddings and isolates of direction, joiners,
/// tags), marks that combine with the character before, other spaces and line ends, and what is not
/// assigned.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_plain(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

fn is_plain(c: char) -> bool {
    // The standard library escapes by the tables of Unicode, and quotes for its own reasons.
    matches!(c, '\'' | '"' | '\\') || c.escape_debug().len() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_seen_stays() {
        let text = r#"qemu -m 1G 'a b' "c" \d é ß Ж 中 م ש 🦀 ~€"#;
        assert_eq!(printable(text), text);
        assert_eq!(printable("a\x1b[2Jb\u{202e}\n"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}");
    }

    #[test]
    fn nothing_invisible_survives() {
        let ranges = [
            // C0, delete and C1.
            ('\0', '\u{1f}'),
            ('\u{7f}', '\u{9f}'),
            // No-break space, soft hyphen, grapheme joiner.
            ('\u{a0}', '\u{a0}'),
            ('\u{ad}', '\u{ad}'),
            ('\u{34f}', '\u{34f}'),
            // Marks of direction: Arabic letter, left-to-right, right-to-left.
            ('\u{61c}', '\u{61c}'),
            ('\u{200e}', '\u{200f}'),
            // Embeddings, overrides and isolates.
            ('\u{202a}', '\u{202e}'),
            ('\u{2066}', '\u{2069}'),
            // Spaces, joiners, line and paragraph ends, invisible operators.
            ('\u{2000}', '\u{200d}'),
            ('\u{2028}', '\u{2029}'),
            ('\u{2060}', '\u{206f}'),
            ('\u{180e}', '\u{180e}'),
            // Variation selectors, byte order mark, annotations, tags.
            ('\u{fe00}', '\u{fe0f}'),
            ('\u{feff}', '\u{feff}'),
            ('\u{fff9}', '\u{fffb}'),
            ('\u{e0000}', '\u{e007f}'),
            ('\u{e0100}', '\u{e01ef}'),
            // Private use.
            ('\u{e000}', '\u{f8ff}'),
        ];
        for c in ranges.into_iter().flat_map(|(first, last)| first..=last) {
            assert_eq!(printable(&c.to_string()), "\u{fffd}", "U+{:04X} survives", u32::from(c));
        }
    }
}
