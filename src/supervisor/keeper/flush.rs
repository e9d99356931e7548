//! The last commit of a run: when it is tried again, and how long a store is waited for that does not answer.

use std::sync::Arc;
use std::time::Duration;

use super::super::background::Teller;
use super::Keeper;
use super::commit::Outcome;
use super::guard::{SOON, answers};
use super::mirror::Mirror;
use crate::edge::clock::Clock;
use crate::edge::store::Store;
use crate::rules::checkpoint::names::Attempt;
use crate::rules::job::{Event, Flushed};

/// How long to wait before looking again at a checkpoint that changed under the last commit of a run.
const LAST_LOOK_PAUSE: Duration = Duration::from_millis(500);
/// So often; with an empty process tree only somebody outside can be writing.
const LAST_LOOKS: u32 = 4;
/// For so long a store that does not answer is waited for where the job was told to stop: whoever did may not wait for us.
const PATIENCE: Duration = Duration::from_secs(20);
/// The same where the job came to its end by itself.
const LONG_PATIENCE: Duration = Duration::from_secs(60);
/// A commit that takes longer makes us ask whether the store is there, and again after as long.
const PROBE_PAUSE: Duration = Duration::from_secs(2);

impl Keeper {
    /// Who watches the store while the last commit waits.
    pub(super) fn vigil(&self) -> Option<Vigil> {
        let mirror = self.mirror.as_ref()?;
        let address = mirror.config.store.as_ref()?.to_string();
        let (store, teller) = (mirror.store.clone()?, self.teller.clone());
        Some(Vigil { store, address, clock: self.clock, teller, pause: PROBE_PAUSE })
    }

    /// The last commit of the run. Nobody of ours writes any more. `silent`: what the store was found to be already.
    pub(super) async fn flush(&mut self, by: Option<Duration>, silent: Option<String>) {
        let vigil = self.vigil();
        let silence = async {
            match (silent, vigil) {
                (Some(silent), _) => silent,
                (None, Some(vigil)) => vigil.silence(by).await,
                (None, None) => std::future::pending().await,
            }
        };
        let flushed = tokio::select! {
            biased;
            why = silence => {
                // What it holds on to is let go of.
                match self.commit(None, Some(Duration::ZERO)).await {
                    Some(Outcome::UpToDate { step }) => Ok(safe(step)),
                    _ => Ok(self.kept_waiting(&why)),
                }
            }
            flushed = self.commit_the_last(by) => flushed,
        };
        self.tell_notes();
        match flushed {
            Ok(flushed) => self.teller.tell(Event::Flushed(flushed)),
            Err(by) => self.tell_fenced(&by.to_string()),
        }
    }

    fn kept_waiting(&self, why: &str) -> Flushed {
        let stands = self.mirror.as_ref().map_or(String::new(), Mirror::what_stands);
        Flushed::Failed(format!(
            "{why}; the newest checkpoint is not committed; {stands}; see that it is well and can be reached from here, then start again"
        ))
    }

    /// Errors: the newer run that has taken over.
    async fn commit_the_last(&mut self, by: Option<Duration>) -> Result<Flushed, Attempt> {
        // A store that answers nobody is the vigil's, which begins a little later.
        let (mut looks, patience) = (0, self.clock.now() + patience(by) + 2 * PROBE_PAUSE);
        loop {
            let left = by.map(|by| by.saturating_sub(self.clock.now()));
            return Ok(match self.commit(None, left).await {
                None => Flushed::Done { step: None },
                Some(Outcome::Committed { step, bytes, seconds, .. }) => {
                    tracing::debug!(bytes, seconds, "the last commit is through");
                    safe(step)
                }
                Some(Outcome::UpToDate { step }) => safe(step),
                Some(Outcome::NothingComplete { why }) => {
                    tracing::info!("no complete checkpoint to commit: {why}");
                    Flushed::Done { step: None }
                }
                Some(Outcome::Fenced { by }) => return Err(by),
                Some(Outcome::Failed { message, is_away: true, .. }) if self.clock.now() < patience => {
                    self.complain(message);
                    tokio::time::sleep(LAST_LOOK_PAUSE).await;
                    continue;
                }
                Some(Outcome::Failed { message, .. }) => Flushed::Failed(message),
                Some(Outcome::OutOfTime { why }) => Flushed::OutOfTime(why),
                Some(Outcome::Changed { why }) if looks + 1 == LAST_LOOKS => Flushed::Failed(format!(
                    "the newest checkpoint keeps changing although no process of the job is left ({why}), so it is not \
                     committed; {}; find out who else writes to the checkpoint directory",
                    self.mirror.as_ref().map_or(String::new(), Mirror::what_stands)
                )),
                Some(Outcome::Changed { .. }) => {
                    looks += 1;
                    tokio::time::sleep(LAST_LOOK_PAUSE).await;
                    continue;
                }
            });
        }
    }
}

/// The newest checkpoint is in the store, whether it has a step or not.
fn safe(step: Option<u64>) -> Flushed {
    step.map_or(Flushed::Stepless, |step| Flushed::Done { step: Some(step) })
}

fn patience(by: Option<Duration>) -> Duration {
    if by.is_some() { PATIENCE } else { LONG_PATIENCE }
}

/// Watches a store, beside a commit.
pub(super) struct Vigil {
    store: Arc<Store>,
    address: String,
    clock: Clock,
    /// Who hears that something moves.
    teller: Teller,
    /// Between two looks.
    pause: Duration,
}

impl Vigil {
    /// Comes back when the store has not answered, or taken anything of what it is sent, for longer than a last commit
    /// with this end waits, with what to say; as long as it does, never.
    pub(super) async fn silence(&self, by: Option<Duration>) -> String {
        let Vigil { store, address, clock, teller, pause } = self;
        let (mut since, mut is_told, patience) = (None, false, patience(by));
        loop {
            let (begun, before) = (clock.now(), store.motion());
            tokio::time::sleep(*pause).await;
            // A question of ours would move something.
            let now = store.motion();
            if now.has_moved_since(before) {
                teller.tell(Event::Transferring);
            }
            let is_stuck = now.is_stuck_since(before);
            let is_there = answers(store).await;
            if is_there && !is_stuck {
                (since, is_told) = (None, false);
                continue;
            }
            let silent = clock.now().saturating_sub(*since.get_or_insert(begun));
            // On a slow line nothing need move for some seconds.
            if !is_told && (!is_there || silent > SOON) {
                let (what, seconds) = (if is_there { "take what it is sent" } else { "answer" }, patience.as_secs());
                tracing::warn!(
                    code = "commit_failed",
                    "{address} does not {what}: the last commit is tried for {seconds} s"
                );
                is_told = true;
            }
            if silent >= patience {
                let what = if is_there { "taken anything" } else { "answered" };
                return format!("{address} has not {what} for {} s", silent.as_secs());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Mutex;
    use std::sync::mpsc::{self, Receiver, Sender};

    use bytes::Bytes;

    use super::*;
    use crate::edge::store::Access;
    use crate::rules::checkpoint::address::Address;
    use crate::rules::env::Env;

    /// Reads so much of what is put at each word.
    const TAKEN: u64 = 4 << 20;

    /// A bucket that lists nothing, says so of each listing, and takes what is put only as it is told to.
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
            let (mut line, mut is_put) = (String::new(), false);
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                is_put |= line.starts_with("PUT ");
                line.clear();
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

    #[tokio::test]
    async fn one_object_that_moves_is_heard_of_and_one_that_does_not_is_not_for_all_that_is_asked_meanwhile() {
        let (at, lists, take) = bucket();
        let pairs = [
            ("AWS_ENDPOINT_URL", at.as_str()),
            ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
            ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMIEXAMPLEKEY"),
            ("AWS_REGION", "us-east-1"),
        ];
        let address = Address::parse("s3://bucket/job").expect("is one");
        let store = Store::open(&address, true, &Access::new(Env::from_pairs(pairs), false)).await.expect("opens");
        let (store, (teller, heard)) = (Arc::new(store), Teller::overheard());
        let pause = Duration::from_millis(100);
        let vigil =
            Vigil { store: Arc::clone(&store), address: address.to_string(), clock: Clock::start(), teller, pause };
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
            why = vigil.silence(None) => unreachable!("{why}"),
            told = moves => told,
        };
        assert!(told[..5].iter().sum::<usize>() >= 3, "it moves: {told:?}");
        assert_eq!(told[8..], [0, 0, 0], "it stands: {told:?}");
    }
}
