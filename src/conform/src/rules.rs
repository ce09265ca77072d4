//! The rules that checks ask about: the lists in `src/conform/rules`, as part of the program.

use serde::Deserialize;
use std::collections::HashMap;
use std::sync::LazyLock;

/// One rule.
#[derive(Clone, Debug, Deserialize)]
pub struct Rule {
    /// Its name for ever: the prefix of its list and three digits.
    pub id: String,
    /// What is so, in one or two sentences.
    #[serde(rename = "rule")]
    pub text: String,
    /// Where it comes from: a section of the standard, a file of the kernel.
    pub source: Option<String>,
    /// How the kernel's rxe does otherwise, or did.
    pub differs: Option<String>,
}

/// One list.
#[derive(Deserialize)]
struct Area {
    #[serde(rename = "rule")]
    rules: Vec<Rule>,
}

macro_rules! lists {
    ($($area:literal)*) => {
        &[$(($area, include_str!(concat!("../rules/", $area, ".toml")))),*]
    };
}

/// Name and text of every list.
const LISTS: &[(&str, &str)] = lists![
    "addresses" "capture" "client" "cm" "congestion" "counters" "cq-events" "flush-atomic-write" "history"
    "hostile" "hostile-input" "log" "memory" "memory-order" "metrics" "multicast" "own-slot" "qp-states"
    "rc-completer" "rc-requester" "rc-responder" "repair" "share" "slot" "srq" "trains" "uc" "ud" "upgrade" "why"
    "windows" "wire"
];

static RULES: LazyLock<HashMap<String, Rule>> = LazyLock::new(|| {
    let areas = LISTS.iter().filter_map(|(_, text)| toml::from_str::<Area>(text).ok());
    areas.flat_map(|area| area.rules).map(|rule| (rule.id.clone(), rule)).collect()
});

/// All rules, by their IDs.
pub fn all() -> impl Iterator<Item = &'static Rule> {
    let mut rules: Vec<&Rule> = RULES.values().collect();
    rules.sort_by(|first, second| first.id.cmp(&second.id));
    rules.into_iter()
}

/// The rule of this ID.
pub fn find(id: &str) -> Option<&'static Rule> {
    RULES.get(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_list_is_part_of_the_program_and_can_be_read() {
        let entries = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/rules")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let lists = paths.filter(|path| path.extension().is_some_and(|ext| ext == "toml"));
        let there: BTreeSet<_> =
            lists.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
        assert_eq!(there, LISTS.iter().map(|(name, _)| (*name).to_owned()).collect());
        for (name, text) in LISTS {
            let area: Area = toml::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(area.rules.iter().all(|rule| find(&rule.id).is_some()));
        }
    }
}
