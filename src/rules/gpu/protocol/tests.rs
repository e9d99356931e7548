use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn reader() -> Reader {
    Reader::new(Duration::ZERO, Limits::discovery(5 * SECOND))
}

#[test]
fn lines_are_complete_for_any_pieces() {
    let text = b"{\"t\":\"hello\",\"version\":\"1\"}\n{\"t\":\"call\",\"fn\":\"nvmlInit_v2\"}\n{\"t\":\"end\"}\n";
    for cut in 0..text.len() {
        let mut reader = reader();
        let mut lines = reader.feed(SECOND, &text[..cut]);
        lines.extend(reader.feed(SECOND, &text[cut..]));
        assert_eq!(lines.len(), 3, "cut at {cut}");
        assert_eq!(lines[2], Line::End);
    }
}

#[test]
fn unknown_kinds_unknown_fields_and_noise_are_no_error() {
    let text = b"{\"t\":\"novelty\",\"x\":1}\nWARNING: stub\n\xff\xfe\n{\"t\":\"end\",\"why\":[1]}\n[]\n{\"t\":\"gpu\",\"index\":\"x\"}\n";
    assert_eq!(reader().feed(SECOND, text), [Line::Unknown, Line::End]);
}

#[test]
fn a_written_line_reads_back() {
    let gpu = Gpu { index: 1, name: Some("x\u{fffd}\"".into()), power_watts: Some(71.5), ..Gpu::default() };
    let lines = [
        Line::Gpu { sampled: true, gpu: Box::new(gpu) },
        Line::Event { index: Some(0), kind: 8, data: 79, gpu_instance: None, recovery_action: Some(1) },
        Line::Call { function: "f".into(), wait_ms: Some(3) },
        Line::EventsUnavailable { function: "f".into(), code: 999 },
    ];
    for line in lines {
        let mut text = serde_json::to_vec(&line).unwrap();
        text.push(b'\n');
        assert_eq!(reader().feed(SECOND, &text), [line]);
    }
}

#[test]
fn silence_after_a_call_names_the_call() {
    let mut reader = reader();
    reader.feed(SECOND, b"{\"t\":\"call\",\"fn\":\"nvmlInit_v2\"}\n");
    assert_eq!(reader.deadline(), 6 * SECOND);
    assert_eq!(reader.overrun(SECOND * 59 / 10), None);
    let overrun = Overrun::Call { function: "nvmlInit_v2".into(), limit: 5 * SECOND };
    assert_eq!(reader.overrun(6 * SECOND), Some(overrun));
}

#[test]
fn noise_is_not_a_sign_of_life() {
    let mut reader = reader();
    reader.feed(4 * SECOND, b"still here\n");
    assert!(reader.overrun(5 * SECOND).is_some());
}

#[test]
fn many_slow_calls_end_at_three_times_the_limit() {
    let mut reader = reader();
    for second in (0..15).step_by(4) {
        reader.feed(second * SECOND, b"{\"t\":\"call\",\"fn\":\"f\"}\n");
    }
    assert_eq!(reader.overrun(14 * SECOND), None);
    assert_eq!(reader.overrun(15 * SECOND), Some(Overrun::Whole { limit: 15 * SECOND }));
}

#[test]
fn an_announced_wait_moves_the_deadline_and_a_watch_has_no_end() {
    let mut reader = Reader::new(Duration::ZERO, Limits::watch(5 * SECOND));
    reader.feed(100 * SECOND, b"{\"t\":\"call\",\"fn\":\"nvmlEventSetWait_v2\",\"wait_ms\":3000}\n");
    assert_eq!(reader.deadline(), 108 * SECOND);
}

#[test]
fn a_line_without_an_end_ends_the_probe_and_costs_no_memory() {
    let mut reader = reader();
    reader.feed(SECOND, &vec![b'x'; LINE_LIMIT_BYTES]);
    assert_eq!(reader.overrun(SECOND), None);
    reader.feed(SECOND, b"x");
    assert_eq!(reader.overrun(SECOND), Some(Overrun::LongLine));
    assert!(reader.feed(SECOND, b"\n{\"t\":\"end\"}\n").is_empty() && reader.partial.is_empty());
}

#[test]
fn absurd_counts_and_indices_are_ignored() {
    let text = b"{\"t\":\"driver\",\"count\":4294967295}\n{\"t\":\"gpu\",\"index\":1024}\n\
        {\"t\":\"gpu_error\",\"index\":70000,\"fn\":\"f\",\"code\":15}\n{\"t\":\"event\",\"index\":70000,\"kind\":8,\"data\":79}\n\
        {\"t\":\"gpu_error\",\"index\":1023,\"fn\":\"f\",\"code\":15}\n";
    let lines = reader().feed(SECOND, text);
    let none = Line::Driver { driver_version: None, cuda_version: None, count: None };
    assert_eq!(lines[..4], [none, Line::Unknown, Line::Unknown, Line::Unknown]);
    assert!(matches!(lines[4..], [Line::GpuError { index: 1023, .. }]), "{lines:?}");
}
