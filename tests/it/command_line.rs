//! Mistakes on the command line and in the configuration: one clear line each, exit 125.

use crate::support::Trainit;

#[test]
fn an_unknown_flag_is_125_and_one_line_with_the_nearest_name() {
    let done = Trainit::new(["run", "--stop-gracee", "3s", "--", "true"]).output().expect_code(125);
    assert_eq!(done.err().lines().count(), 1, "{}", done.err());
    assert!(done.err().contains("--stop-grace"), "{}", done.err());
}

#[test]
fn help_is_on_stdout_and_names_the_variable_of_each_flag() {
    let done = Trainit::new(["run", "--help"]).output().expect_code(0);
    assert!(done.out().contains("TRAINIT_STOP_GRACE"), "{}", done.out());
}
