//! Expands Slurm's compressed host lists, `gpu[08-10,12],login` and `rack[1-2]-n[01-02]`, like `scontrol show
//! hostnames` (checked with 22.05).
//!
//! Lists for which scontrol prints garbage or nothing are refused: text after the last bracket, reversed ranges,
//! unclosed brackets.

use std::collections::HashSet;

use crate::cluster::parse::address::parse_host;
use crate::cluster::spec::quote;

/// Larger lists are refused.
const MAX_HOSTS: usize = 65_536;

/// Expands a list. Errors: the offending item and the mistake, in one clause.
pub fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut hosts = Vec::new();
    for item in items(list)? {
        let room = MAX_HOSTS - hosts.len();
        let expanded = expand_item(item, room).map_err(|what| format!("{} {what}", quote(item)))?;
        hosts.extend(expanded);
    }
    let mut seen = HashSet::with_capacity(hosts.len());
    for host in &hosts {
        parse_host(host).map_err(|what| format!("{} {what}", quote(host)))?;
        if !seen.insert(host) {
            return Err(format!("{} is listed twice", quote(host)));
        }
    }
    Ok(hosts)
}

/// Splits at commas outside brackets.
fn items(list: &str) -> Result<Vec<&str>, String> {
    let (mut found, mut start, mut depth) = (Vec::new(), 0, 0u32);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'[' if depth > 0 => return Err(format!("{} has a bracket within a bracket", quote(&list[start..]))),
            b'[' => depth = 1,
            b']' if depth == 0 => return Err(format!("{} closes a bracket that is not open", quote(&list[start..]))),
            b']' => depth = 0,
            b',' if depth == 0 => {
                found.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if depth > 0 {
        return Err(format!("{} has an unclosed bracket", quote(&list[start..])));
    }
    found.push(&list[start..]);
    Ok(found)
}

/// Expands one item. The last bracket counts fastest, as in scontrol; then the first, the second and so on.
fn expand_item(item: &str, room: usize) -> Result<Vec<String>, String> {
    if item.is_empty() {
        return Err("is an empty item".to_owned());
    }
    let mut hosts = vec![String::new()];
    let mut rest = item;
    while let Some((text, after)) = rest.split_once('[') {
        let (ranges, after) = after.split_once(']').ok_or("has an unclosed bracket")?;
        let numbers = numbers(ranges, room)?;
        if hosts.len().saturating_mul(numbers.len()) > room {
            return Err(too_many());
        }
        let named = |host: &String, number: &String| format!("{host}{text}{number}");
        hosts = match after.contains('[') {
            true => numbers.iter().flat_map(|n| hosts.iter().map(move |host| named(host, n))).collect(),
            false => hosts.iter().flat_map(|host| numbers.iter().map(move |n| named(host, n))).collect(),
        };
        rest = after;
    }
    if !rest.is_empty() {
        if item.contains('[') {
            return Err("has text after its last bracket, which Slurm does not expand".to_owned());
        }
        hosts = vec![rest.to_owned()];
    }
    if hosts.len() > room {
        return Err(too_many());
    }
    Ok(hosts)
}

/// The content of a bracket: `n` or `n-m`, separated by commas. The width of zero-padding is kept.
fn numbers(ranges: &str, room: usize) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for range in ranges.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let digits = !text.is_empty() && text.len() <= 18 && text.bytes().all(|b| b.is_ascii_digit());
            text.parse::<u64>()
                .ok()
                .filter(|_| digits)
                .ok_or_else(|| format!("has {}, which is not a number", quote(text)))
        };
        let (first, last) = (number(low)?, number(high)?);
        if first > last {
            return Err(format!("has the reversed range {}", quote(range)));
        }
        if last - first >= (room - found.len().min(room)) as u64 {
            return Err(too_many());
        }
        let width = low.len();
        found.extend((first..=last).map(|n| format!("{n:0width$}")));
    }
    Ok(found)
}

fn too_many() -> String {
    format!("expands to more than {MAX_HOSTS} hosts")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_three_brackets_the_last_counts_fastest_and_then_the_first() {
        let hosts = expand("a[0-1]b[0-1]c[0-1]").expect("a list");
        assert_eq!(hosts.join(" "), "a0b0c0 a0b0c1 a1b0c0 a1b0c1 a0b1c0 a0b1c1 a1b1c0 a1b1c1");
    }

    #[test]
    fn lists_expand_as_scontrol_expands_them() {
        let cases = [
            ("n1", "n1"),
            ("gpu[08-10]", "gpu08 gpu09 gpu10"),
            ("n[8-10]", "n8 n9 n10"),
            ("n[098-101]", "n098 n099 n100 n101"),
            ("n[1,3-4],login", "n1 n3 n4 login"),
            ("rack[1-2]-n[01-02]", "rack1-n01 rack1-n02 rack2-n01 rack2-n02"),
            ("a,b,c", "a b c"),
            ("n[0]", "n0"),
        ];
        for (list, hosts) in cases {
            assert_eq!(expand(list).map(|h| h.join(" ")), Ok(hosts.to_owned()), "{list}");
        }
    }

    #[test]
    fn a_list_that_scontrol_cannot_expand_is_refused_with_the_item() {
        let wrong = [
            "n[1-2]-ib",
            "n[3-1]",
            "n[1-2",
            "n1-2]",
            "n[]",
            "n[1-]",
            "n[-1]",
            "n[a-b]",
            "n[1,,2]",
            "",
            "a,,b",
            "a,",
            "n[[1]]",
            "n 1",
            "n[1-2],n1",
            "n[1-99999999999999999999]",
        ];
        for list in wrong {
            assert!(expand(list).is_err(), "{list:?} gave {:?}", expand(list));
        }
        assert!(expand("ok,n[3-1]").expect_err("reversed").contains("3-1"));
    }

    #[test]
    fn a_list_that_would_fill_the_memory_is_refused() {
        for list in ["n[0-99999999]", "a[0-999]b[0-999]c[0-999]", "n[0-65536]", "n[0-65535],m"] {
            assert!(expand(list).expect_err(list).contains("65536"), "{list}");
        }
        assert_eq!(expand("n[0-65535]").map(|h| h.len()), Ok(65_536));
        assert!(expand(&"n[0-40000],".repeat(1000)).is_err());
    }
}
