//! When the trainer is asked to save: at an interval, and after a notice, at one step on all ranks.

use crate::support::Trainit;

/// A trainer with some steps a second that saves when it is asked, and exits after a save that follows a SIGTERM.
const TRAINER: &str = r#"
    n=0; trap 'stop=1' TERM
    while [ $n -lt 3000 ]; do
        n=$((n + 1)); sleep 0.02
        echo "{\"step\": $n}" >$TRAINIT_HEARTBEAT_FILE.$$; mv $TRAINIT_HEARTBEAT_FILE.$$ $TRAINIT_HEARTBEAT_FILE
        asked=$(cat $TRAINIT_SAVE_STEP_FILE 2>/dev/null)
        if [ -n "$asked" ] && [ "$asked" != "$last" ] && [ $n -ge $asked ]; then
            last=$asked; echo "saved $n asked $asked."; saves=$((saves + 1))
            [ -z "$stop" ] || exit 0
            [ "$saves" != "$1" ] || exit 0
        fi
        [ $n != 70 ] || echo warm.
    done
    exit 9"#;

fn run(flags: &[&str], saves: &str) -> Trainit {
    Trainit::new([&["run"], flags, &["--", "sh", "-c", TRAINER, "sh", saves]].concat())
}

/// The steps that were saved and those that were asked for.
fn saved(out: &str) -> Vec<(u64, u64)> {
    let number = |text: &str| text.trim_end_matches('.').parse().unwrap();
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let lines = out.lines().filter_map(|line| Some(&line[line.find("saved ")?..]));
    lines.map(words).map(|words| (number(&words[1]), number(&words[3]))).collect()
}

#[test]
fn a_trainer_is_asked_to_save_again_and_again_at_the_interval() {
    let done = run(&["--save-interval", "1s"], "3").output().expect_code(0);
    let saved = saved(&done.out());
    assert_eq!(saved.len(), 3, "{}", done.out());
    assert!(saved.windows(2).all(|pair| pair[0].1 < pair[1].1), "{saved:?}");
}

#[test]
fn a_notice_sets_the_step_at_once_also_without_an_interval() {
    let running = run(&[], "0").start();
    running.after_line("warm.");
    let done = running.stop().expect_code(143);
    assert_eq!(saved(&done.out()).len(), 1, "{}", done.out());
}

#[test]
fn after_a_notice_all_ranks_save_one_step() {
    let running = run(&["--nproc", "2"], "0").start();
    running.after_line("warm.");
    let done = running.stop().expect_code(143);
    let saved = saved(&done.out());
    assert_eq!(saved.len(), 2, "{}", done.out());
    assert_eq!((saved[0].0, saved[0].0), (saved[1].0, saved[0].1), "{saved:?}");
}

#[test]
fn without_an_interval_nothing_is_asked_before_a_notice_and_a_wrong_one_is_refused() {
    let script = "sleep 0.5; [ -f $TRAINIT_SAVE_STEP_FILE ] && [ ! -s $TRAINIT_SAVE_STEP_FILE ]";
    Trainit::run(["sh", "-c", script]).output().expect_code(0);
    let done = Trainit::new(["run", "--save-interval", "often", "--", "true"]).output().expect_code(125);
    assert!(done.err().contains("a share of the time such as 2%"), "{}", done.err());
}
