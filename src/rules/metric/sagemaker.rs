//! A metric definition as SageMaker has it in `AlgorithmSpecification.MetricDefinitions`: an object with `Name` and `Regex`.
//! An example: `{"Name": "validation:rmse", "Regex": "validation-rmse:([0-9.]+)"}`; in the configuration file also as a table.

use serde::Deserialize;

use super::pattern::Pattern;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Definition {
    #[serde(rename = "Name", alias = "name")]
    name: String,
    #[serde(rename = "Regex", alias = "regex")]
    regex: String,
}

/// `None` for what is no object.
pub(super) fn read(text: &str) -> Option<Result<Pattern, String>> {
    if !text.trim_start().starts_with('{') {
        return None;
    }
    let definition: Result<Definition, _> = serde_json::from_str(text);
    Some(match definition {
        Ok(definition) => Pattern::named(&definition.name, &definition.regex),
        Err(error) => Err(format!("expected an object with Name and Regex, found {text:?}: {error}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_of_the_built_in_xgboost_algorithm_is_understood() {
        let text = r##"{"Name": "validation:rmse", "Regex": ".*\\[[0-9]+\\].*#011validation-rmse:([-+]?[0-9]*\\.?[0-9]+(?:[eE][-+]?[0-9]+)?).*"}"##;
        let pattern = read(text).expect("this form").expect("a pattern");
        let mut values = Vec::new();
        pattern.find(b"[14]#011train-rmse:0.5#011validation-rmse:0.25", |found| values.extend(found.map(|f| f.value)));
        assert_eq!((pattern.tag(), values), (Some("validation:rmse"), vec![0.25]));
    }

    #[test]
    fn what_is_missing_or_too_much_is_named() {
        for (text, reason) in [
            ("{\"Name\": \"a\"}", "Regex"),
            ("{\"Name\": \"a\", \"Regex\": \"(x)\", \"Unit\": 1}", "Unit"),
            ("{", "EOF"),
        ] {
            let error = read(text).expect("this form").expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert!(read("a={").is_none());
    }
}
