//! The few forms in which the kernel writes things down.

/// Bytes as people read them, in whole binary units where they are exact and three figures where not.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let power = UNITS.len().min((64 - bytes.leading_zeros() as usize).saturating_sub(1) / 10 + 1) - 1;
    let unit = 1_u64 << (10 * power);
    if bytes.is_multiple_of(unit) {
        return format!("{} {}", bytes / unit, UNITS[power]);
    }
    let number = bytes as f64 / unit as f64;
    let digits = if number < 10.0 { 2 } else { usize::from(number < 100.0) };
    format!("{number:.digits$} {}", UNITS[power])
}

/// How many cores or nodes a list like `0-3,8` names. Nonsense counts for nothing.
pub(crate) fn members(list: &str) -> Vec<usize> {
    /// More than any kernel is built for; a longer list is nonsense.
    const MOST: usize = 1 << 16;
    let mut all = Vec::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.trim().parse::<usize>(), last.trim().parse::<usize>()) else { continue };
        if last < MOST {
            all.extend(first..=last);
        }
    }
    all
}

/// The chosen word of a setting such as `always [madvise] never`.
pub(crate) fn chosen(setting: &str) -> Option<&str> {
    setting.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

/// The value behind `name:` in a file of such lines, without its unit.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find_map(|line| line.split_once(':').filter(|(key, _)| key.trim() == name));
    line.map(|(_, value)| value.trim())
}

/// A field of `/proc/meminfo` in bytes.
pub(crate) fn meminfo(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Major and minor of a kernel release such as `6.18.44-generic`.
pub(crate) fn release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Words as a person lists them: `a, b and c`.
pub(crate) fn listed<T: AsRef<str>>(words: &[T]) -> String {
    match words {
        [] => String::new(),
        [one] => one.as_ref().to_owned(),
        [first @ .., last] => {
            let first: Vec<&str> = first.iter().map(AsRef::as_ref).collect();
            format!("{} and {}", first.join(", "), last.as_ref())
        }
    }
}

/// `1 core`, `2 cores`.
pub(crate) fn count(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_as_people_write_them() {
        let shown = [0, 1, 1023, 8 << 20, (8 << 20) + 1, 25_261_387_776, u64::MAX].map(size);
        assert_eq!(shown, ["0 B", "1 B", "1023 B", "8 MiB", "8.00 MiB", "23.5 GiB", "16384 PiB"]);
    }

    #[test]
    fn lists_are_counted() {
        assert_eq!(members("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(members(""), [0; 0]);
        assert_eq!(members("x,3-,0-99999999999,7"), [7]);
    }

    #[test]
    fn settings_fields_and_releases_are_read() {
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!(field("A:\t1 kB\nSeccomp:\t2\n", "Seccomp"), Some("2"));
        assert_eq!(meminfo("MemTotal:  16 kB\n", "MemTotal"), Some(16 << 10));
        assert_eq!((release("6.18.44-fc"), release("5.4"), release("unheard")), (Some((6, 18)), Some((5, 4)), None));
        assert_eq!(listed(&["a", "b", "c"]), "a, b and c");
    }
}
