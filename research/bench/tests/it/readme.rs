//! The figures of the README are those of the result files.

use std::fs;
use std::path::Path;

use serde_json::Value;

#[test]
fn the_table_of_the_readme_is_the_main_jobs_result() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let text = fs::read_to_string(root.join("research/bench/results/main_job.json")).unwrap();
    let result: Value = serde_json::from_str(&text).unwrap();
    let driver = result["device"]["driver"].as_str().unwrap();
    let date = result["date"].as_str().unwrap();
    assert!(readme.contains(driver) && readme.contains(date), "{driver}, {date}");
    let rows = result["rows"].as_array().unwrap();
    let (_, table) = readme.split_once("| training keeps |\n|---|---|---|---|---|\n").unwrap();
    let mut settings = 0;
    for line in table.lines().take_while(|line| line.starts_with('|')) {
        let cells: Vec<String> =
            line.trim_matches('|').split('|').map(|cell| cell.trim().replace("**", "")).collect();
        let row = rows.iter().find(|row| row["setting"] == cells[0].as_str() && row["neighbour"] == "train");
        let row = row.unwrap_or_else(|| panic!("{line}"));
        let number = |value: &Value, digits: usize| format!("{:.digits$}", value.as_f64().unwrap());
        let told = [
            number(&row["p50_ms"], 3),
            number(&row["p99_ms"], 3),
            number(&row["p99_against_solo"]["median"], 2),
            format!("{:.0} %", row["neighbour_against_solo"].as_f64().unwrap() * 100.0),
        ];
        assert_eq!(cells[1..], told, "{line}");
        settings += 1;
    }
    assert_eq!(settings, 6);
}
