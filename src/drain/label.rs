//! Valid label keys and values.

/// Whether this can be the key of a label or an annotation: a name of up to 63 letters, digits, `-`,
/// `_` and `.` that begins and ends with a letter or digit, perhaps after a DNS name and `/`.
pub fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_dns_name(prefix) && is_name(name),
        None => is_name(text),
    }
}

/// Whether this can be the value of a label: empty, or as the name of a key.
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name(text)
}

fn is_name(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    text.len() <= 63
        && text.starts_with(edge)
        && text.ends_with(edge)
        && text.chars().all(|c| edge(c) || "-_.".contains(c))
}

fn is_dns_name(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_part = |part: &str| {
        part.starts_with(edge) && part.ends_with(edge) && part.chars().all(|c| edge(c) || c == '-')
    };
    text.len() <= 253 && text.split('.').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_are_those_that_the_api_server_takes() {
        let long = "a".repeat(63);
        for key in ["a", "A-1_b.c", "example.com/a", "a/b", "x-y.z/A", &long] {
            assert!(is_label_key(key), "{key}");
        }
        let longer = format!("{long}a");
        for key in ["", "a b", "-a", "a-", "/a", "a/", "a/b/c", "A.com/a", "a..b/c", "é", &longer]
        {
            assert!(!is_label_key(key), "{key}");
        }
        assert!(is_label_value("") && is_label_value("gpu-1") && is_label_value(&long));
        for value in ["a b", "a/b", "-", "é", &longer] {
            assert!(!is_label_value(value), "{value}");
        }
    }
}
