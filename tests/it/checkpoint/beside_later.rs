//! Trainers that cannot start or save because of the remains of an interrupted save: Composer, which continues from where
//! its link leads, and NVIDIA's resiliency extension.

use std::fs;

use crate::support::Trainit;
use crate::support::checkpoints::Place;

/// `whole` is a file of `torch.save`, and `half` is its first half.
const FILES: &str = r#"cd "$D"; die() { kill -9 $$; }; half() { printf 'PK\003\004 and no end'; }
    whole() { printf 'PK\003\004PK\005\006\0\0\0\0\0\0\0\0\0\0\0\0\004\0\0\0\0\0'; }"#;

const COMPOSER: &str = r#"
    link() { ln -sfn ep0-ba$1-rank0.pt latest-rank0.pt; }
    save() { whole >ep0-ba$1-rank0.pt; touch -d @$1 ep0-ba$1-rank0.pt; link $1; }
    batch() { sed 's/.*ep0-ba\([0-9]*\)-.*/\1/'; }
    from=0; [ ! -e latest-rank0.pt ] || from=$(readlink latest-rank0.pt | batch)
    echo $TRAINIT_ATTEMPT from ${from:-a file}
    for b in $(ls | batch | grep '^[0-9]*$'); do
        [ $b -le ${from:-99} ] || { echo ep0-ba$b-rank0.pt may conflict; exit 1; }
    done"#;

const NVRX: &str = r#"
    mkdir -p s/0; path() { echo s/0/iter_000000$1_0_local$2.pt; }
    save() { (set -C; whole >$(path $1 .dirty)) || exit 1; touch -d @$1 $(path $1 .dirty); mv $(path $1 .dirty) $(path $1); }
    echo $TRAINIT_ATTEMPT from $(ls s/0 | grep -v dirty | tr -dc 0-9_ | cut -d_ -f2)"#;

fn run(place: &Place, args: &[&str], trainer: &str, attempts: &str) -> Trainit {
    let script = format!("{FILES}{trainer}\ncase $TRAINIT_ATTEMPT in {attempts} esac");
    let local = place.local();
    let run = ["run", "--checkpoint-dir", local.to_str().unwrap(), "--restart-backoff", "1ms"];
    Trainit::new(run).args(args).args(["--", "sh", "-c", &script]).env("D", &local)
}

#[track_caller]
fn expect(place: &Place, trainer: &str, attempts: &str, seen: &str) {
    let done = run(place, &[], trainer, attempts).output();
    assert_eq!(done.out(), seen, "{attempts}: {}", done.err());
    done.expect_code(0);
}

#[test]
fn a_torn_save_is_moved_away_although_a_link_names_the_complete_one() {
    for torn in ["half", ":"] {
        let torn = |batch: u64| format!("{torn} >ep0-ba{batch}-rank0.pt; die ;;");
        expect(&Place::new(), COMPOSER, &format!("1) {} 2) save 4 ;;", torn(4)), "1 from 0\n2 from 0\n");
        let place = Place::new();
        let attempts = format!("1) save 4; save 8; {} 2) save 12 ;;", torn(12));
        expect(&place, COMPOSER, &attempts, "1 from 0\n2 from 8\n");
        assert!(place.local().join(".trainit/torn/local-1/ep0-ba12-rank0.pt").exists());
    }
}

#[test]
fn an_interrupted_save_under_a_new_name_is_moved_away() {
    for torn in ["half", "whole"] {
        let torn = |step: u64| format!("{torn} >$(path {step} .dirty); die ;;");
        expect(&Place::new(), NVRX, &format!("1) {} 2) save 4 ;;", torn(4)), "1 from\n2 from\n");
        let attempts = format!("1) save 4; {} 2) save 8 ;;", torn(8));
        expect(&Place::new(), NVRX, &attempts, "1 from\n2 from 0000004\n");
    }
}

#[test]
fn a_file_with_the_name_of_composers_link_is_not_changed() {
    let attempts = "1) save 4; rm latest-rank0.pt; whole >latest-rank0.pt; die ;; 2) [ ! -L latest-rank0.pt ] ;;";
    expect(&Place::new(), COMPOSER, attempts, "1 from 0\n2 from a file\n");
}

#[test]
fn a_file_in_the_place_of_a_restored_link_is_moved_aside() {
    let place = Place::new();
    let args = ["--checkpoint-store", &place.url()];
    run(&place, &args, COMPOSER, "1) save 4 ;;").output().expect_code(0);
    fs::remove_dir_all(place.local()).unwrap();
    fs::create_dir(place.local()).unwrap();
    fs::write(place.local().join("latest-rank0.pt"), "foreign").unwrap();
    let done = run(&place, &args, COMPOSER, "1) ;;").output().expect_code(0);
    assert_eq!(done.out(), "1 from 4\n", "{}", done.err());
    let kept = fs::read_dir(place.local().join(".trainit/aside")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read(kept.join("latest-rank0.pt")).unwrap(), b"foreign");
}
