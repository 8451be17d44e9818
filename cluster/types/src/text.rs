//! Characters that are not shown as themselves. They break lines, move the cursor, turn the
//! direction of text, or are invisible.
//!
//! Servers refuse them in texts that people read later, and every output escapes them. Both use
//! this one function.

/// Whether a character changes how the text around it is shown, or is itself invisible.
///
/// These are the control characters (C0, DEL, C1), separators of lines and paragraphs, direction
/// controls (bidi), invisible format characters, fillers, tags, and supplementary variation
/// selectors.
#[must_use]
pub const fn is_control(c: char) -> bool {
    matches!(c,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        // A hyphen that is only visible at the end of a line.
        | '\u{ad}'
        | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        // Letters that are drawn as blanks.
        | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// The first control character of a text, with its position.
#[must_use]
pub fn control_in(text: &str) -> Option<(usize, char)> {
    text.char_indices().find(|&(_, c)| is_control(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_not_shown_as_itself_is_found() {
        let hidden = "\0\t\n\r\u{1b}\u{7f}\u{80}\u{85}\u{9b}\u{9f}\u{ad}\u{61c}\u{200b}\u{200d}\u{200e}\u{200f}\u{2028}\u{2029}\
            \u{202a}\u{202e}\u{2060}\u{2066}\u{2069}\u{feff}\u{fff9}\u{e0001}\u{e0100}\u{3164}";
        for c in hidden.chars() {
            assert!(is_control(c), "{c:?}");
        }
        let control = char::from_u32(0x7f);
        assert_eq!(control_in("ab\u{7f}"), control.map(|c| (2, c)));
    }

    #[test]
    fn words_of_any_script_pass() {
        let words = "Die Königin sagt: \"ja\" – für 5 €, 女王 кот 👑 \u{a0} é e\u{301} שלום مرحبا ไทย 👍🏽 ❤\u{fe0f}";
        assert_eq!(control_in(words), None);
        assert_eq!(control_in(""), None);
    }
}
