//! The full names that glibc's resolver would ask for a short one, by `/etc/resolv.conf` (resolv.conf(5)).
//!
//! musl's resolver, which the static file has, uses no search list for a name with as many dots as `ndots` says, and
//! stops at the first domain whose server fails or has no address. Deliberately absent: the variables `LOCALDOMAIN`
//! and `RES_OPTIONS`, and every option except `ndots`.

/// glibc's largest `ndots`.
const MOST_DOTS: usize = 15;

/// The names to ask for, best first; each ends with a dot, so that no search list is applied to it.
pub fn candidates(name: &str, resolv_conf: &str, hostname: Option<&str>) -> Vec<String> {
    let (mut domains, mut ndots) = (None, 1);
    for line in resolv_conf.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("search") => domains = Some(words.collect()),
            Some("domain") => domains = Some(words.take(1).collect()),
            Some("options") => {
                let given = words.filter_map(|word| word.strip_prefix("ndots:")?.parse::<usize>().ok()).next_back();
                ndots = given.map_or(ndots, |dots| dots.min(MOST_DOTS));
            }
            _ => {}
        }
    }
    let own_domain = || hostname.and_then(|name| name.trim().split_once('.')).map(|(_, domain)| domain);
    let domains: Vec<&str> = domains.unwrap_or_else(|| own_domain().into_iter().collect());
    let full = format!("{}.", name.trim_end_matches('.'));
    if name.ends_with('.') {
        return vec![full];
    }
    let is_first = name.matches('.').count() >= ndots;
    let searched = domains.iter().map(|domain| domain.trim_matches('.')).map(|domain| match domain {
        "" => full.clone(),
        domain => format!("{full}{domain}."),
    });
    let mut names: Vec<String> = Vec::new();
    for candidate in is_first.then(|| full.clone()).into_iter().chain(searched).chain([full.clone()]) {
        if !names.contains(&candidate) {
            names.push(candidate);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_fewer_dots_than_ndots_is_searched_first_and_any_other_last() {
        let pod =
            |ndots: &str| format!("nameserver 10.0.0.10\nsearch ns.svc.cluster.local corp.example\noptions {ndots}\n");
        let (searched, full) = (["a.b.ns.svc.cluster.local.", "a.b.corp.example."], "a.b.");
        assert_eq!(candidates("a.b", &pod("ndots:5"), None), [searched[0], searched[1], full]);
        for once in ["ndots:1", "timeout:1 ndots:1", "", "ndots:x"] {
            assert_eq!(candidates("a.b", &pod(once), None), [full, searched[0], searched[1]], "{once}");
        }
        assert_eq!(candidates("a.b.", &pod("ndots:5"), None), [full], "a final dot means the whole name");
    }

    #[test]
    fn the_last_search_list_counts_and_the_hosts_own_domain_is_the_default() {
        assert_eq!(candidates("a", "search x y\ndomain z w\n", None), ["a.z.", "a."]);
        assert_eq!(candidates("a", "", Some("n1.cluster")), ["a.cluster.", "a."]);
        assert_eq!(candidates("a", "search .\n", Some("n1.cluster")), ["a."]);
        assert_eq!(candidates("a", "search x. x\n", Some("n1")), ["a.x.", "a."]);
        assert_eq!(candidates("", "", None), ["."]);
    }
}
