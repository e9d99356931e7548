//! Whether a commit that somebody waits for is still worth it: what of the store can be seen beside it. Of one that is a
//! directory it is only seen that something moves; whether it answers, `places.rs` asks.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::super::background::Teller;
use super::Keeper;
use super::guard::{Answer, SOON, answers};
use super::places::{Places, Silence};
use crate::edge::store::{Motion, Store};
use crate::rules::job::Event;

/// For so long a store that takes nothing is waited for where the job was told to stop: whoever did may not wait for us.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// The same where the job came to its end by itself, or is to begin or to go on.
pub(super) const LONG_PATIENCE: Duration = Duration::from_secs(60);
/// A commit that takes longer makes us ask whether the store is there, and again after as long.
pub(super) const PROBE_PAUSE: Duration = Duration::from_secs(2);
/// What was refused is sent again sooner.
const LULL: Duration = Duration::from_secs(10);

/// How long a last commit with this end waits for a store that takes nothing.
pub(super) fn patience(by: Option<Duration>) -> Duration {
    if by.is_some() { PATIENCE } else { LONG_PATIENCE }
}

impl Keeper {
    /// Who watches the store while the last commit waits.
    pub(super) fn vigil(&self) -> Option<Vigil> {
        let mirror = self.mirror.as_ref()?;
        let address = mirror.config.store.as_ref()?.to_string();
        let (store, teller, seen) = (mirror.store.clone()?, self.teller.clone(), Arc::clone(&self.seen));
        let places = Rc::clone(&self.places);
        Some(Vigil { store, address, teller, pause: PROBE_PAUSE, seen, places })
    }
}

/// What is wrong with a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Silent,
    Stuck,
    /// With the status.
    Refuses(Option<u16>),
}

impl Wrong {
    fn now(self) -> String {
        match self {
            Wrong::Silent => "does not answer".to_owned(),
            Wrong::Stuck | Wrong::Refuses(None) => "does not take what it is sent".to_owned(),
            Wrong::Refuses(Some(status)) => format!("refuses what it is sent (answer {status})"),
        }
    }

    fn for_long(self) -> String {
        match self {
            Wrong::Silent => "has not answered".to_owned(),
            Wrong::Stuck | Wrong::Refuses(None) => "has not taken anything".to_owned(),
            Wrong::Refuses(Some(status)) => format!("has refused what it is sent (answer {status})"),
        }
    }
}

/// What was seen of the store since it is waited for.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Since when that is.
    waits: Duration,
    /// Since when it takes nothing.
    since: Option<Duration>,
    refusal: Option<(Duration, Wrong)>,
    is_told: bool,
}

/// Watches a store, beside a commit.
pub(super) struct Vigil {
    store: Arc<Store>,
    address: String,
    /// Who hears that something moves.
    teller: Teller,
    /// Between two looks.
    pause: Duration,
    /// Shared with the next vigil: the last commit may wait for the one before.
    seen: Arc<Mutex<Seen>>,
    /// Where it is said who waits.
    places: Rc<Places>,
}

impl Vigil {
    /// Comes back when the store has not answered, or taken anything of what it is sent, for longer than who waits is
    /// patient, with what to say; as long as it does, or nobody waits, never.
    pub(super) async fn silence(&self) -> Silence {
        self.places.awaited().await;
        let mut last = self.store.motion();
        loop {
            let (begun, before) = (self.places.now(), self.store.motion());
            tokio::time::sleep(self.pause).await;
            // A question of ours would move something.
            let now = self.store.motion();
            if now.has_moved_since(before) {
                self.teller.tell(Event::Transferring);
            }
            // It is asked by others.
            if self.store.is_directory() {
                continue;
            }
            let answer = answers(&self.store).await;
            // But it writes nothing.
            let now = now.with_writes_of(self.store.motion());
            let (wait, mut seen) =
                (self.places.awaited().await, self.seen.lock().unwrap_or_else(PoisonError::into_inner));
            if seen.waits != wait.since {
                *seen = Seen { waits: wait.since, ..Seen::default() };
            }
            let wrong = self.wrong(answer, [last, before, now], &mut seen);
            last = now;
            let Some(wrong) = wrong else {
                *seen = Seen { waits: wait.since, ..Seen::default() };
                continue;
            };
            let (address, patience) = (&self.address, wait.patience_with_the_store());
            let lasts = self.places.now().saturating_sub(*seen.since.get_or_insert(begun));
            // On a slow line nothing need move for some seconds, and many a refusal is the only one.
            if !seen.is_told && (wrong == Wrong::Silent || lasts > SOON) {
                let (what, seconds) = (wrong.now(), patience.as_secs());
                tracing::warn!(code = "commit_failed", "{address} {what}: {} for at most {seconds} s", wait.what);
                seen.is_told = true;
            }
            if lasts >= patience {
                let why = format!("{address} {} for {} s", wrong.for_long(), lasts.as_secs());
                return Silence { why, is_of_the_store: true };
            }
        }
    }

    /// What is wrong with the store, by how it stood at the look before, and before and after this one's pause.
    fn wrong(&self, answer: Answer, [last, before, now]: [Motion; 3], seen: &mut Seen) -> Option<Wrong> {
        // Our question waits behind what we send.
        let is_busy = now.has_taken_since(last) || now.has_moved_since(before) && now.is_sending_since(before);
        if answer == Answer::Unreachable || answer == Answer::Late && !is_busy {
            return Some(Wrong::Silent);
        }
        if now.has_taken_since(last) {
            return None;
        }
        if now.is_stuck_since(before) {
            return Some(Wrong::Stuck);
        }
        // However long it takes, it may be taken.
        if now.is_sending_since(before) {
            return None;
        }
        let at = self.places.now();
        if now.has_refused_since(last) {
            seen.refusal = Some((at, Wrong::Refuses(now.refusal())));
        }
        // Before what was refused is sent again there is a pause.
        seen.refusal.filter(|(refused, _)| at.saturating_sub(*refused) < LULL).map(|(_, wrong)| wrong)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::{self, Receiver, Sender};

    use bytes::Bytes;

    use super::super::Keep;
    use super::super::places::COMMIT;
    use super::*;
    use crate::edge::clock::Clock;
    use crate::edge::store::Access;
    use crate::rules::checkpoint::address::Address;
    use crate::rules::env::Env;

    /// Reads so much of what is put at each word.
    const TAKEN: u64 = 4 << 20;

    /// A bucket that lists nothing, says so of each listing, and takes what is put only as it is told to, or refuses it by
    /// its name.
    fn bucket() -> (String, Receiver<()>, Sender<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let at = format!("http://{}", listener.local_addr().expect("has an address"));
        let ((listed, lists), (take, takes)) = (mpsc::channel(), mpsc::channel());
        let takes = Arc::new(Mutex::new(takes));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (listed, takes) = (listed.clone(), Arc::clone(&takes));
                std::thread::spawn(move || serve(&stream, &listed, &takes));
            }
        });
        (at, lists, take)
    }

    fn serve(mut stream: &TcpStream, listed: &Sender<()>, takes: &Mutex<Receiver<()>>) {
        let mut reader = BufReader::new(stream);
        loop {
            let (mut line, mut is_put, mut is_refused) = (String::new(), false, false);
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                is_put |= line.starts_with("PUT ");
                is_refused |= line.starts_with("PUT ") && line.contains("refused");
                line.clear();
            }
            if is_refused {
                let _ = stream.write_all(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n");
                continue;
            }
            if is_put {
                while takes.lock().expect("is held by no dead thread").recv().is_ok() {
                    let _ = std::io::copy(&mut reader.by_ref().take(TAKEN), &mut std::io::sink());
                }
                return;
            }
            let body = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            if stream.write_all(answer.as_bytes()).is_err() || listed.send(()).is_err() {
                return;
            }
        }
    }

    /// Who watches such a bucket, and who hears of it.
    async fn watch(at: &str, pause: Duration) -> (Vigil, Receiver<Event>) {
        let pairs = [
            ("AWS_ENDPOINT_URL", at),
            ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
            ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMIEXAMPLEKEY"),
            ("AWS_REGION", "us-east-1"),
        ];
        let address = Address::parse("s3://bucket/job").expect("is one");
        let store = Store::open(&address, true, &Access::new(Env::from_pairs(pairs), false)).await.expect("opens");
        let (store, (teller, heard)) = (Arc::new(store), Teller::overheard());
        let (address, seen) = (address.to_string(), Arc::default());
        let places = Rc::new(Places::of(&Keep { checkpoints: None, model: None }, Clock::start()));
        places.awaits(COMMIT, LONG_PATIENCE);
        (Vigil { store, address, teller, pause, seen, places }, heard)
    }

    #[tokio::test]
    async fn a_store_that_refuses_is_waited_for_as_long_as_it_takes_another_object_however_slowly() {
        let (at, _lists, take) = bucket();
        let (vigil, _heard) = watch(&at, PROBE_PAUSE).await;
        let put = |key: &'static str, bytes: usize| {
            let store = Arc::clone(&vigil.store);
            tokio::spawn(async move { store.put(key, vec![Bytes::from(vec![0; bytes])], 0).await.map(drop) })
        };
        let until = async |seen: &dyn Fn(Motion) -> bool| {
            while !seen(vigil.store.motion()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            vigil.store.motion()
        };
        let (begun, mut seen) = (vigil.store.motion(), Seen::default());
        let slow = put("slow.bin", 60 << 20);
        let before = until(&|now| now.is_stuck_since(vigil.store.motion())).await;
        let refused = put("refused.bin", 0);
        take.send(()).expect("is taken");
        let now = until(&|now| now.has_refused_since(begun)).await;
        assert_eq!(vigil.wrong(Answer::Came, [begun, before, now], &mut seen), None);
        slow.abort();
        let _ = slow.await;
        let then = until(&|then| then.has_refused_since(now)).await;
        let refuses = Some(Wrong::Refuses(Some(503)));
        assert_eq!(vigil.wrong(Answer::Came, [now, now, then], &mut seen), refuses);
        assert_eq!(vigil.wrong(Answer::Came, [then, then, then], &mut seen), refuses, "it is about to be sent again");
        refused.abort();
    }

    #[tokio::test]
    async fn a_store_that_answers_late_is_silent_only_where_nothing_of_ours_moves_either() {
        let (at, _lists, take) = bucket();
        let (vigil, _heard) = watch(&at, PROBE_PAUSE).await;
        let store = Arc::clone(&vigil.store);
        let slow = tokio::spawn(async move { store.put("slow.bin", vec![Bytes::from(vec![0; 60 << 20])], 0).await });
        let until = async |seen: &dyn Fn(Motion) -> bool| {
            while !seen(vigil.store.motion()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            vigil.store.motion()
        };
        let before = until(&|now| now.is_stuck_since(vigil.store.motion())).await;
        take.send(()).expect("is taken");
        let now = until(&|now| now.has_moved_since(before)).await;
        let wrong = |answer, motions| vigil.wrong(answer, motions, &mut Seen::default());
        assert_eq!(wrong(Answer::Late, [before, before, now]), None, "the question waits behind it");
        assert_eq!(wrong(Answer::Unreachable, [before, before, now]), Some(Wrong::Silent));
        assert_eq!(wrong(Answer::Late, [before, now, now]), Some(Wrong::Silent));
        slow.abort();
    }

    #[tokio::test]
    async fn questions_that_are_given_up_do_not_make_a_store_that_hangs_look_busy() {
        // Nobody accepts: the kernel takes what it is sent, and nobody ever answers.
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let at = format!("http://{}", listener.local_addr().expect("has an address"));
        let (vigil, _heard) = watch(&at, PROBE_PAUSE).await;
        let store = Arc::clone(&vigil.store);
        let putting = tokio::spawn(async move { store.put("some.bin", vec![Bytes::from(vec![0; 1000])], 0).await });
        let begun = vigil.store.motion();
        while !vigil.store.motion().has_moved_since(begun) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for _ in 0..5 {
            let last = vigil.store.motion();
            let question = tokio::time::timeout(Duration::from_millis(200), vigil.store.list("")).await;
            assert!(question.is_err(), "nobody answers it");
            let before = vigil.store.motion();
            tokio::time::sleep(Duration::from_millis(200)).await;
            let now = vigil.store.motion();
            assert!(!now.has_moved_since(before));
            let wrong = vigil.wrong(Answer::Late, [last, before, now], &mut Seen::default());
            assert_eq!(wrong, Some(Wrong::Silent));
        }
        putting.abort();
    }

    #[tokio::test]
    async fn one_object_that_moves_is_heard_of_and_one_that_does_not_is_not_for_all_that_is_asked_meanwhile() {
        let (at, lists, take) = bucket();
        let (vigil, heard) = watch(&at, Duration::from_millis(100)).await;
        let store = Arc::clone(&vigil.store);
        let putting = store.put("step-1/weights.bin", vec![Bytes::from(vec![0; 60 << 20])], 0);
        let moves = async {
            let mut told = Vec::new();
            for word in [[true; 4].as_slice(), &[false; 7]].concat() {
                if word {
                    take.send(()).expect("is taken");
                }
                while lists.try_recv().is_err() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                told.push(heard.try_iter().filter(|event| *event == Event::Transferring).count());
            }
            told
        };
        let told = tokio::select! {
            _ = putting => unreachable!("nobody answers it"),
            silence = vigil.silence() => unreachable!("{silence:?}"),
            told = moves => told,
        };
        assert!(told[..5].iter().sum::<usize>() >= 3, "it moves: {told:?}");
        assert_eq!(told[8..], [0, 0, 0], "it stands: {told:?}");
    }
}
