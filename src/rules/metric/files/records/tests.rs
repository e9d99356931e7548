use super::*;
use proptest::prelude::*;

fn reader() -> Reader {
    Reader::new("log".to_owned(), None, Vec::new())
}

fn measurements(found: Vec<Found>) -> Vec<(String, f64, String)> {
    found.into_iter().map(|f| (f.tag.unwrap_or_default(), f.value, f.step.unwrap_or_default())).collect()
}

/// The measurements in these lines, which must cause no remarks.
#[track_caller]
fn all(text: &str) -> Vec<(String, f64, String)> {
    all_by(&mut reader(), text)
}

#[track_caller]
fn all_by(reader: &mut Reader, text: &str) -> Vec<(String, f64, String)> {
    let mut all = Vec::new();
    let lines: Vec<_> = text.lines().map(|line| reader.read(line.as_bytes())).collect();
    for (found, remarks) in lines.into_iter().chain([reader.finish()]) {
        assert_eq!(remarks, [""; 0], "{text}");
        all.extend(measurements(found));
    }
    all
}

fn of(tag: &str, value: f64, step: &str) -> (String, f64, String) {
    (tag.to_owned(), value, step.to_owned())
}

/// The only remark about a line.
#[track_caller]
fn why(text: &[u8]) -> String {
    let mut reader = reader();
    let lines: Vec<_> = text.split(|b| *b == b'\n').map(|line| reader.read(line)).collect();
    let all = lines.into_iter().chain([reader.finish()]);
    let mut remarks: Vec<String> = all.flat_map(|(_, remarks)| remarks).collect();
    assert_eq!(remarks.len(), 1, "{remarks:?}");
    remarks.remove(0)
}

#[test]
fn an_empty_line_has_no_measurement() {
    let mut lines = Lines::default();
    lines.feed(b"\r\n\na=1\r\n\r", |line| assert_eq!(line, b"a=1"));
    lines.finish(|line| panic!("{line:?}"));
}

#[test]
fn every_number_of_an_object_is_measured_with_its_step() {
    assert_eq!(all(r#"{"loss": 0.25, "acc": "0.5", "step": 10}"#), [of("acc", 0.5, "10"), of("loss", 0.25, "10")]);
    assert_eq!(all(r#"{"tag": "loss", "value": 1e-5, "step": "007"}"#), [of("loss", 1e-5, "7")]);
    assert_eq!(all(r#"{"loss": NaN, "_step": 3.0}"#).len(), 1);
    assert_eq!(all(r#"{"value": 1, "tag": null}"#), [of("value", 1.0, "")]);
    assert_eq!(all(r#"{"a": {"b": 1}, "c": [1], "d": true, "e": null, "f": "x", "g": 1}"#), [of("g", 1.0, "")]);
}

#[test]
fn a_dict_in_pythons_form_is_read() {
    let line = "{'loss': 2.5, 'lr': np.float64(4.5e-05), 'name': 'a b', 'step': 7}";
    assert_eq!(all(line), [of("loss", 2.5, "7"), of("lr", 4.5e-5, "7")]);
    assert_eq!(all("{'loss': 2.5,\n 'text': 'x=1 }',\n 'step': 8}"), [of("loss", 2.5, "8"), of("x", 1.0, "8")]);
    let mut by_epoch = Reader::new("log".into(), Some("epoch"), Vec::new());
    assert_eq!(all_by(&mut by_epoch, "{'loss': 2.5, 'epoch': 1.5}"), [of("loss", 2.5, "1")]);
}

#[test]
fn a_line_of_the_metrics_file_is_read() {
    let line = r#"{"checkpoint_path": "", "global_step": "3", "loss": "0.5", "timestamp": 1700000000.5, "trial": "0"}"#;
    assert_eq!(all(line), [of("loss", 0.5, "3")]);
}

#[test]
fn assignments_are_found_between_other_words() {
    assert_eq!(all("epoch 1: loss=0.5, acc = 0.75; step=12\r"), [of("loss", 0.5, "12"), of("acc", 0.75, "12")]);
    assert_eq!(all("Validation-accuracy=0.9 lr=1e-05"), [of("Validation-accuracy", 0.9, ""), of("lr", 1e-5, "")]);
    assert_eq!(all("a==1 =2 nothing here"), []);
}

#[test]
fn the_lines_of_a_progress_bar_are_read() {
    let bar = "Epoch 0:  50%|##  | 5/10 [00:01<00:01, 5.0it/s, step=5, loss=0.500, acc=70.0%]";
    assert_eq!(all(bar), [of("loss", 0.5, "5"), of("acc", 70.0, "5")]);
    let log = "[07/21 10:24:07 x.events]:  eta: 0:09:09  iter: 239  total_loss: 3.5  time: 0.5s  lr: 0.00014";
    let mut by_iter = Reader::new("log".into(), Some("iter"), Vec::new());
    let expected = [of("total_loss", 3.5, "239"), of("time", 0.5, "239"), of("lr", 0.00014, "239")];
    assert_eq!(all_by(&mut by_iter, log), expected);
    let mut by_iteration = Reader::new("log".into(), Some("iteration"), Vec::new());
    let log = " iteration       10/     100 | elapsed time per iteration (ms): 812.3 | lm loss: 9.812233E+00 |";
    assert_eq!(all_by(&mut by_iteration, log), [of("loss", 9.812233, "10")]);
}

#[test]
fn a_percentage_is_not_a_step() {
    let mut by_epoch = Reader::new("log".into(), Some("epoch"), Vec::new());
    let bar = "Epoch:  40%|####      | 2/5 [00:01<00:01, 5.0it/s, epoch=2, loss=0.500]";
    assert_eq!(all_by(&mut by_epoch, bar), [of("loss", 0.5, "2")]);
    let untold = "Epoch:  60%|######    | 3/5 [00:01<00:01, 5.0it/s, loss=0.250]";
    assert_eq!(all_by(&mut by_epoch, untold), [of("loss", 0.25, "2")]);
}

#[test]
fn a_step_applies_to_all_lines_until_the_next_step() {
    let mut by_epoch = Reader::new("log".into(), Some("epoch"), Vec::new());
    let text = "Epoch 1/2\n10/10 - loss: 0.5\nEpoch 2/2\n10/10 - loss: 0.25 - val_loss: 0.125";
    assert_eq!(all_by(&mut by_epoch, text), [of("loss", 0.5, "1"), of("loss", 0.25, "2"), of("val_loss", 0.125, "2")]);
    let rows = "Epoch,step,loss\n0,5,0.5\n1,10,0.25";
    by_epoch.start_again();
    assert_eq!(all_by(&mut by_epoch, rows), [of("loss", 0.5, "0"), of("loss", 0.25, "1")]);
    assert_eq!(
        all("[step 3] loss=1\nloss=2 Step 10/100, x=1"),
        [of("loss", 1.0, "3"), of("loss", 2.0, "10"), of("x", 1.0, "10")]
    );
}

#[test]
fn a_table_has_its_names_in_the_first_line_and_may_have_empty_cells() {
    let text = "epoch,step,train_loss,val_acc\n0,10,0.5,\n1,20,,0.95\n";
    let expected =
        [of("epoch", 0.0, "10"), of("train_loss", 0.5, "10"), of("epoch", 1.0, "20"), of("val_acc", 0.95, "20")];
    assert_eq!(all(text), expected);
    let mut appended = reader();
    appended.skip(b"step,loss");
    assert_eq!(all_by(&mut appended, "5,0.5"), [of("loss", 0.5, "5")]);
    assert!(appended.read(b"6,0.5,7").1[0].contains("3 fields, but the header has 2 names"));
    assert_eq!(appended.counts(), Counts { lines: 2, understood: 1 });
}

#[test]
fn an_object_over_several_lines_is_read_whole() {
    let text = "{\n  \"loss\": 0.5,\n  \"eval\": {\n    \"loss\": 0.25\n  },\n  \"step\": 3\n}\nacc=1";
    assert_eq!(all(text), [of("loss", 0.5, "3"), of("acc", 1.0, "3")]);
    assert_eq!(all("{rank 0} loss=0.5"), [of("loss", 0.5, "")]);
}

#[test]
fn no_part_of_an_object_with_a_mistake_is_reported_and_there_is_one_remark() {
    for object in
        ["{\n  \"a\": 1,\n  \"b\": 2,\n}", "{\n  \"a\": 1\n  \"b\": 2\n}", "{\n  a: 1,\n  b: 2\n}", "{\n  \"a\": 1,"]
    {
        let mut reader = reader();
        let lines = [object, object, "{\"loss\": 0.5}"].join("\n");
        let read: Vec<_> = lines.lines().map(|line| reader.read(line.as_bytes())).collect();
        let found: Vec<_> = read.iter().flat_map(|(found, _)| measurements(found.clone())).collect();
        let remarks: Vec<_> = read.iter().flat_map(|(_, remarks)| remarks).collect();
        assert_eq!(found, [of("loss", 0.5, "")], "{object}");
        assert!(remarks.len() == 1 && remarks[0].contains("no part of it is reported"), "{object}: {remarks:?}");
    }
    assert!(why(b"{\n\"a\": 1").contains("an object of 2 lines in log is skipped"));
}

#[test]
fn an_object_that_was_cut_hides_no_other_line() {
    for cut in ["{\"loss\": 0.", "{\"loss\": 2,", "{\"lo", "{\"loss\": [2,"] {
        let mut reader = reader();
        let text = format!("{cut}\n{{\"loss\": 1}}\n{{\"loss\": 0.5}}\n{{\"loss\": 0.25}}");
        let read: Vec<_> = text.lines().map(|line| reader.read(line.as_bytes())).collect();
        let found: Vec<_> = read.into_iter().flat_map(|(found, _)| measurements(found)).collect();
        assert!(found.ends_with(&[of("loss", 0.5, ""), of("loss", 0.25, "")]) || cut.contains('['), "{cut}: {found:?}");
        assert_eq!(found.last(), Some(&of("loss", 0.25, "")), "{cut}");
    }
    let mut reader = reader();
    reader.read(b"{\"loss\": 0.");
    assert_eq!(reader.finish().1, [""; 0], "the attempt was killed");
    assert_eq!(all_by(&mut reader, "loss=1"), [of("loss", 1.0, "")]);
}

#[test]
fn the_name_may_be_a_member_of_an_object_with_a_value() {
    for name in ["tag", "name", "metric", "key"] {
        let object = format!("{{\"{name}\": \"5shot\", \"value\": 0.5, \"unit\": 1, \"global_step\": 7}}");
        assert_eq!(all(&object), [of("5shot", 0.5, "7")]);
    }
    assert_eq!(all("{\"key\": 3, \"value\": 0.5}"), [of("key", 3.0, ""), of("value", 0.5, "")]);
    assert_eq!(all("{\"name\": \"a\", \"value\": \"x\", \"loss\": 1}"), [of("loss", 1.0, "")]);
    assert_eq!(all("name,value,step\nloss,0.5,1\nacc,0.25,1"), [of("loss", 0.5, "1"), of("acc", 0.25, "1")]);
    assert_eq!(all("metric=loss value=0.5"), [of("loss", 0.5, "")]);
}

#[test]
fn a_fraction_is_a_step_only_in_a_field_that_the_user_named() {
    let text =
        "step 100 loss=0.5\ntime per step: 0.25 s loss=0.4\n{\"step\": 0.5, \"loss\": 0.3}\nstep: 200.0 loss=0.2";
    assert_eq!(
        all(text),
        [of("loss", 0.5, "100"), of("loss", 0.4, "100"), of("loss", 0.3, "100"), of("loss", 0.2, "200")]
    );
    let mut by_epoch = Reader::new("log".into(), Some("epoch"), Vec::new());
    assert_eq!(
        all_by(&mut by_epoch, "epoch 3 loss=0.5\ntime per epoch: 12.5 s loss=0.4").last(),
        Some(&of("loss", 0.4, "3"))
    );
    assert_eq!(
        all_by(&mut by_epoch, "{\"epoch\": 4.5, \"loss\": 1}\n{'epoch': 5.5, 'loss': 1}"),
        [of("loss", 1.0, "4"), of("loss", 1.0, "5")]
    );
}

#[test]
fn a_step_is_a_whole_token_and_the_global_step_comes_first() {
    for (line, step) in [
        ("step=5,loss=1", "5"),
        ("step 3/10 loss=1", "3"),
        ("saved at step 200. loss=1", "200"),
        ("step=5 loss=1 global_step=105", "105"),
        ("wrote step-100.pt loss=1", ""),
        ("time per step 12s loss=1", ""),
        ("time per step: 0:00:12 loss=1", ""),
        ("step 100k loss=1", ""),
        ("2ms/step - loss: 1", ""),
    ] {
        assert_eq!(all(line), [of("loss", 1.0, step)], "{line}");
    }
    assert_eq!(all("{\"step\": 5, \"global_step\": 105, \"loss\": 1}"), [of("loss", 1.0, "105")]);
}

#[test]
fn a_number_that_is_no_whole_token_is_told_of_once() {
    assert!(why(b"loss: 0.05, Accuracy: 9875/10000 (99%)\nAccuracy: 9876/10000").contains("Accuracy=9875/10000"));
    assert!(why(b"at localhost:6006. loss: 0.5").contains("localhost=6006."));
    assert!(why(b"tokens: 1.2k loss: 0.5").contains("tokens=1.2k"));
    assert_eq!(all("time: 12:30:45 date: 2024-01-01 file.py:12 loss: 0.5"), [of("loss", 0.5, "")]);
}

#[test]
fn one_name_for_two_metrics_is_told_of_once() {
    let text = b"train loss: 0.5\nval loss: 0.4\ntrain loss: 0.3\nval loss: 0.2";
    let remark = why(text);
    assert!(remark.contains("\"train loss\" and \"val loss\" of log have one name, \"loss\""), "{remark}");
    assert_eq!(all("Epoch 1 loss: 0.5\nEpoch 2 loss: 0.4\nINFO loss: 0.3\n[WARNING] loss: 0.2").len(), 4);
}

#[test]
fn a_line_that_cannot_be_read_causes_a_remark() {
    assert!(why(b"\xff loss=1").contains("invalid UTF-8"));
    let (mut lines, mut reader, mut read) = (Lines::default(), reader(), Vec::new());
    lines.feed(&[&vec![b'x'; 2 * LONGEST_LINE_BYTES][..], b" loss=1\nloss=2\n"].concat(), |line| {
        read.push(reader.read(line))
    });
    assert!(read[0].0.is_empty() && read[0].1[0].contains("1 MiB"), "{:?}", read[0].1);
    assert_eq!((read[1].0.len(), read[1].1.len()), (1, 0));
}

#[test]
fn a_byte_order_mark_is_ignored() {
    assert_eq!(all("\u{feff}{\"loss\": 0.5}"), [of("loss", 0.5, "")]);
    assert_eq!(all("\u{feff}loss=0.5"), [of("loss", 0.5, "")]);
}

#[test]
fn a_number_with_commas_is_not_cut_at_the_first() {
    for value in ["1,234.5", "1,234,567", "0,5", "-1,5,"] {
        let (found, remarks) = reader().read(format!("acc=0.5 loss={value} f1=0.25").as_bytes());
        assert_eq!(found.len(), 2, "{value}: {found:?}");
        assert!(remarks.len() == 1 && remarks[0].contains("loss="), "{value}: {remarks:?}");
    }
    assert!(why(b"step=1,000 loss=0.5").contains("step"));
    assert!(why(b"{\"loss\": \"1,234.5\"}").contains("loss"));
    assert_eq!(all("a=1,b=2,5shot=3"), [of("a", 1.0, ""), of("b", 2.0, ""), of("5shot", 3.0, "")]);
}

#[test]
fn a_value_that_is_not_a_number_causes_one_remark_and_one_for_each_name_that_had_a_number() {
    let mut reader = Reader::new("log".into(), None, vec!["f1".to_owned()]);
    let mut remarks = |line: &str| reader.read(line.as_bytes()).1;
    assert!(remarks("loss=0.5 optimizer=adam")[0].contains("optimizer=adam is not a number"));
    assert_eq!(remarks("device=cuda name: x, {'mode': 'train'}"), [""; 0]);
    assert!(remarks("loss: n/a")[0].contains("loss=n/a"));
    assert!(remarks("{\"f1\": \"none\", \"phase\": \"train\"}")[0].contains("f1=none"), "the tag was selected");
    assert_eq!(remarks("loss=n/a f1: none"), [""; 0]);
}

#[test]
fn a_name_with_two_values_in_a_line_is_omitted() {
    let (found, remarks) = reader().read(b"train loss: 0.5, val loss: 0.25, acc: 1");
    assert_eq!(measurements(found), [of("acc", 1.0, "")]);
    assert!(remarks[0].contains("\"loss\" is twice"), "{remarks:?}");
    assert_eq!(all("loss=1 loss=1"), [of("loss", 1.0, "")]);
}

#[test]
fn a_step_is_read_in_any_notation() {
    for step in ["100", "1e2", "100.0"] {
        assert_eq!(all(&format!("loss=1 step={step}")), [of("loss", 1.0, "100")]);
        assert_eq!(all(&format!("{{\"loss\": 1, \"step\": \"{step}\"}}")), [of("loss", 1.0, "100")]);
    }
}

#[test]
fn lines_are_complete_for_any_pieces() {
    for size in [1, 2, 3, 100] {
        let mut lines = Lines::default();
        let mut all = Vec::new();
        b"one\ntwo\rtoo\r\n\nthree".chunks(size).for_each(|piece| lines.feed(piece, |line| all.push(line.to_vec())));
        assert_eq!(all, [&b"one"[..], b"two", b"too"]);
        lines.finish(|line| all.push(line.to_vec()));
        assert_eq!(all.last().map(Vec::as_slice), Some(&b"three"[..]));
    }
}

#[test]
fn an_endless_line_takes_no_memory_and_hides_no_other_line() {
    let mut lines = Lines::default();
    let mut all = Vec::new();
    for _ in 0..40 {
        lines.feed(&[b'x'; 100_000], |line| all.push(line.to_vec()));
        assert!(lines.incomplete.capacity() <= 2 * LONGEST_LINE_BYTES);
    }
    lines.feed(b"\nnext\n", |line| all.push(line.to_vec()));
    assert!(all.len() == 2 && all[0].len() == LONGEST_LINE_BYTES + 1 && all[1] == b"next");
}

proptest! {
    #[test]
    fn no_line_makes_it_panic(bytes in any::<Vec<u8>>(), text in "[{}'\"a=, :0-9.N\u{1b}-]{0,30}") {
        let mut reader = reader();
        let _ = (reader.read(&bytes), reader.read(text.as_bytes()), reader.read(&bytes), reader.finish());
    }
}
