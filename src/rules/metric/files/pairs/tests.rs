use super::*;
use proptest::prelude::*;

/// The names and numbers in a line, as `name=token`.
fn found(line: &str) -> Vec<String> {
    let taken = pairs(line).into_iter().filter(|pair| pair.number.is_some());
    taken.map(|pair| format!("{}={}", pair.name, pair.text)).collect()
}

#[track_caller]
fn finds(line: &str, expected: &[&str]) {
    assert_eq!(found(line), expected, "{line}");
}

#[test]
fn both_signs_are_read_between_other_words() {
    finds("epoch 1: loss=0.5, acc = 0.75; step=12", &["loss=0.5", "acc=0.75", "step=12"]);
    finds("12:30:00 INFO iter: 239  total_loss: 3.5", &["iter=239", "total_loss=3.5"]);
    finds("50/50 - loss : 0.5 - acc: 93%", &["loss=0.5", "acc=93%"]);
    finds("{'loss': 2.5, 'epoch': 1.0}", &["loss=2.5", "epoch=1.0"]);
    finds("INFO {\"loss\":2,\"epoch\":1}", &["loss=2", "epoch=1"]);
    finds("at http://host:80/a?x=1 C:\\dir file.py:12", &[]);
}

#[test]
fn a_sign_without_a_number_takes_nothing_and_the_search_continues_behind_it() {
    finds("Validation: loss: 0.0968 - FScore: 0.9032", &["loss=0.0968", "FScore=0.9032"]);
    finds(
        "Epoch 3 Test set: Test-Loss: 0.216253, Accuracy: 71.59% (9332/13036)",
        &["Test-Loss=0.216253", "Accuracy=71.59%"],
    );
    finds("level=info msg=\"loss: 0.5 acc=0.9\"", &["loss=0.5", "acc=0.9"]);
    finds("metrics={loss: 0.5, acc: [0.9]} best=n/a f1=0.25", &["loss=0.5", "acc=[0.9]", "f1=0.25"]);
    finds("time: 12:30:45 eta: 0:10:00 file: a:b loss: 0.5", &["loss=0.5"]);
    finds("a==1 =2 b<=3 c!=4 3: 4 x= y=z w=1 12=5 d=", &["w=1"]);
}

#[test]
fn a_colon_is_a_sign_before_a_fraction_but_not_before_a_whole_number() {
    // As XGBoost 3.2 prints its evaluation.
    finds("[0]\ttrain-logloss:0.45470\ttest-auc:1.00000", &["train-logloss=0.45470", "test-auc=1.00000"]);
    finds("test-rmse:0.25+0.02 a:1e-05 b:nan c:-0.5", &["test-rmse=0.25+0.02", "a=1e-05", "b=nan", "c=-0.5"]);
    finds("2026-11-27T10:24:07.123Z file.py:12 cuda:0 host:8080 10:24:07.5 [T10:24:07.5] info:no", &[]);
    finds("image:24.01-py3 host:8080/path foo:1.2.3", &[]);
}

#[test]
fn a_number_is_a_whole_token() {
    for token in ["6006.", "9875/10000", "1,234", "12:30", "1.2.3", "0x10", "1.2k", "2'000", "3f2a", "2024-01-01"] {
        for line in [format!("x: {token} y: 0.5"), format!("x={token} y: 0.5"), format!("x:{token} y: 0.5")] {
            finds(&line, &["y=0.5"]);
        }
    }
    finds("loss: 0.25. acc=93%. lr: 1e-05.", &["loss=0.25.", "acc=93%.", "lr=1e-05."]);
    finds("x=1=y a=1", &["a=1"]);
}

#[test]
fn a_token_that_is_almost_a_number_is_kept_for_a_warning() {
    let mistakes = |line: &str| -> Vec<String> {
        pairs(line).into_iter().filter(|p| p.number.is_none()).map(|p| format!("{}={}", p.name, p.text)).collect()
    };
    assert_eq!(mistakes("loss: 0.05, Accuracy: 9875/10000 (99%)"), ["Accuracy=9875/10000"]);
    assert_eq!(mistakes("at localhost:6006. Accuracy:98/100"), ["localhost=6006.", "Accuracy=98/100"]);
    assert_eq!(mistakes("file.py:12 cuda:0 10:24:07.5 image:24.01-py3 host:8080/path"), [""; 0]);
}

#[test]
fn a_level_and_a_logger_are_not_part_of_a_name() {
    finds("INFO:root:loss=0.0500", &["loss=0.0500"]);
    finds("WARNING:my.trainer:f1: 0.25", &["f1=0.25"]);
    finds("[rank0]:INFO:my.trainer:f1=0.25", &["f1=0.25"]);
    finds("INFO:tensorflow:auc = 0.75, step = 100 (1.234 sec)", &["auc=0.75", "step=100"]);
    finds("DEBUG:a.b:validation:rmse=0.5 INFO:acc=0.5", &["validation:rmse=0.5", "acc=0.5"]);
    finds("validation:rmse=0.5 train:loss=0.25", &["validation:rmse=0.5", "train:loss=0.25"]);
}

#[test]
fn the_word_before_a_name_is_its_label() {
    let labels =
        |line: &str| -> Vec<String> { pairs(line).iter().map(|p| format!("{}/{}", p.label, p.name)).collect() };
    assert_eq!(labels("train loss: 0.5 | val loss: 0.4"), ["train/loss", "val/loss"]);
    assert_eq!(labels("[train] loss: 0.5"), ["train/loss"]);
    assert_eq!(labels("Epoch 3 loss: 0.5, - acc: 0.9"), ["/loss", "/acc"]);
    assert_eq!(labels("[INFO] loss: 0.5 ERROR acc=1"), ["/loss", "/acc"]);
}

#[test]
fn the_percentage_of_a_progress_bar_is_not_a_value() {
    // As tqdm 4.70 draws it.
    finds("train:  20%|##        | 1/5 [00:00<00:00, loss=0.5]", &["loss=0.5"]);
    finds("acc: 93% | loss: 0.5", &["acc=93%", "loss=0.5"]);
}

#[test]
fn brackets_belong_to_neither_name_nor_value() {
    finds("Epoch 0: 50%|##  | 5/10 [00:01<00:01, 5.0it/s, loss=0.5]", &["loss=0.5"]);
    finds("(acc=0.5) [step=3] (f1)=1", &["acc=0.5", "step=3", "f1=1"]);
    finds("iter time (s): 0.5, acc (%)=93", &["time=0.5", "acc=93"]);
    finds("Epoch: [0][ 10/100]  loss: 0.5 (0.6)", &["Epoch=[0]", "loss=0.5"]);
}

#[test]
fn a_call_and_a_quoted_number_are_numbers_and_a_list_is_none() {
    finds("betas=[0.9, 0.99] x=1", &["x=1"]);
    finds("'loss': np.float64(0.5), 'a': 'b', d='2'", &["loss=np.float64(0.5)", "d='2'"]);
    finds("loss=tensor(1., device='cuda:0') x=[1.]", &["loss=tensor(1., device='cuda:0')", "x=[1.]"]);
}

#[test]
fn a_comma_in_a_number_is_part_of_it() {
    finds("a=1,b=2,5shot=3", &["a=1", "b=2", "5shot=3"]);
    finds("a=1,234.5, b=0,5;c=1", &["c=1"]);
}

/// Lines as these programs print them, with their versions where the form depends on it.
#[test]
fn the_lines_of_many_programs_are_read() {
    for (line, expected) in [
        // Keras 2 and 3.
        (
            "938/938 [==============================] - 2s 2ms/step - loss: 0.2952 - accuracy: 0.9149",
            "loss=0.2952 accuracy=0.9149",
        ),
        ("100/938 [==>...........................] - ETA: 1s - loss: 1.2952", "ETA=1s loss=1.2952"),
        ("938/938 ━━━━━━━━━━━━━━━━━━━━ 2s 2ms/step - accuracy: 0.8747 - loss: 0.4368", "accuracy=0.8747 loss=0.4368"),
        ("Epoch 1: val_loss improved from inf to 0.14, saving model to a.keras", ""),
        // Lightning.
        (
            "Epoch 0:  50%|█████     | 5/10 [00:01<00:01,  5.00it/s, v_num=0, train_loss_step=0.500]",
            "v_num=0 train_loss_step=0.500",
        ),
        // Hugging Face.
        ("  5%|▌    | 5/100 [00:01<00:19, 4.9it/s]{'loss': 2.5, 'epoch': 0.1}", "loss=2.5 epoch=0.1"),
        ("{'train_runtime': 12.5, 'train_loss': '0.25'}", "train_runtime=12.5 train_loss='0.25'"),
        // fairseq.
        (
            "2021-01-01 00:00:00 | INFO | train_inner | epoch 001:    100 / 1000 loss=5.5, ppl=45.2, lr=5e-05",
            "loss=5.5 ppl=45.2 lr=5e-05",
        ),
        // timm.
        (
            "Train: 0 [   0/1251 (  0%)]  Loss: 6.94 (6.94)  Time: 1.234s,  207.44/s  LR: 1.000e-06",
            "Train=0 Loss=6.94 Time=1.234s LR=1.000e-06",
        ),
        ("Test: [  0/48]  Time: 0.5 (0.5)  Acc@1: 85.9 (85.9)", "Time=0.5 Acc@1=85.9"),
        // LightGBM, CatBoost, XGBoost.
        ("[1]\tvalid_0's l2: 0.243", "l2=0.243"),
        (
            "0:\tlearn: 0.6558\ttest: 0.66\tbest: 0.66 (0)\ttotal: 58.1ms\tremaining: 58s",
            "learn=0.6558 test=0.66 best=0.66 total=58.1ms remaining=58s",
        ),
        ("[99]\ttrain-rmse:0.25000+0.01\ttest-rmse:0.5+0.02", "train-rmse=0.25000+0.01 test-rmse=0.5+0.02"),
        // Megatron, NeMo.
        (
            " iteration       10/     100 | elapsed time per iteration (ms): 812.3 | lm loss: 9.812233E+00 | loss scale: 1.0 |",
            "iteration=812.3 loss=9.812233E+00 scale=1.0",
        ),
        (
            "Training epoch 0, iteration 12/149 | lr: 3e-05 | global_step: 12 | reduced_train_loss: 1.25",
            "lr=3e-05 global_step=12 reduced_train_loss=1.25",
        ),
        // Ultralytics.
        ("      Epoch    GPU_mem   box_loss   cls_loss  Instances       Size", ""),
        ("        1/3     2.34G      1.123      2.345         56        640: 100%|██████████| 8/8 [00:01<00:00]", ""),
        ("                 Class     Images      Box(P          R      mAP50-95): 100%|██████████| 4/4", ""),
        ("                   all        128      0.64      0.537     0.446", ""),
        // absl, loguru, detectron2, Python's logging, TensorFlow's estimator.
        ("I0728 12:00:00.123456 140 trainer.py:123] step: 100, loss: 0.5", "step=100 loss=0.5"),
        ("2024-01-01 12:00:00.000 | INFO     | __main__:train:42 - loss: 0.5", "loss=0.5"),
        ("[07/21 10:24:07 x.events]:  eta: 0:09:09  iter: 239  total_loss: 3.5", "iter=239 total_loss=3.5"),
        ("2026-11-28 12:00:00,123 - trainer - INFO - acc: 0.5 f1: 0.25", "acc=0.5 f1=0.25"),
        (
            "INFO:tensorflow:Saving dict for global step 1000: accuracy = 0.5, global_step = 1000",
            "accuracy=0.5 global_step=1000",
        ),
        // PyTorch's examples.
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.296", "Epoch=1 Loss=2.296"),
        ("Test set: Average loss: 0.0500, Accuracy: 9875/10000 (99%)", "loss=0.0500"),
        ("Epoch: [0][  10/5005]\tTime  0.250 ( 0.300)\tLoss 6.9e+00", "Epoch=[0]"),
        ("Epoch 1/10.. Train loss: 0.5.. Test accuracy: 0.9", "loss=0.5.. accuracy=0.9"),
        // DeepSpeed, torchtune, structlog, TensorBoard.
        (
            "[2024-01-01 00:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[0.001], mom=[(0.9, 0.999)]",
            "step=10 skipped=0 lr=[0.001]",
        ),
        ("1|10|Loss: 1.25:  10%|█         | 10/100 [00:10<01:30]", "Loss=1.25:"),
        ("2024-01-01T00:00:00Z [info     ] epoch done    acc=0.5 loss=0.25", "acc=0.5 loss=0.25"),
        ("Serving TensorBoard on localhost:6006. Press CTRL+C", ""),
    ] {
        assert_eq!(found(line).join(" "), expected, "{line}");
    }
}

/// Whether a character continues a number to another token.
fn continues(c: char) -> bool {
    c.is_ascii_digit() || "._/:".contains(c)
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "\\PC*", odd in "[ab1=:,;|()\\[\\]{}'\". é]{0,24}") {
        for pair in pairs(&text).into_iter().chain(pairs(&odd)) {
            prop_assert!(!pair.name.is_empty() && !pair.text.is_empty());
        }
    }

    #[test]
    fn every_number_is_a_whole_token(line in "([a-c]{1,2}|[ =:]|: |[0-9]{1,2}|[.,/%|()'\\[\\]e-]){0,16}") {
        for pair in pairs(&line).into_iter().filter(|pair| pair.number.is_some()) {
            let inside = pair.text.trim_matches(|c: char| !c.is_alphanumeric() && !"+-.".contains(c));
            let length = value::length_of_number(inside.trim_start_matches(|c: char| c.is_alphabetic() || c == '('));
            prop_assert!(length.is_some(), "{}: {:?}", line, pair);
            // The number's neighbours in the line do not continue it.
            let start = pair.text.as_ptr() as usize - line.as_ptr() as usize;
            let after = &line[start + pair.text.len()..];
            prop_assert!(!after.starts_with(continues) || pair.text.ends_with(CLOSING) || pair.text.ends_with(QUOTES), "{}: {:?}", line, pair);
            let before = &line[..start];
            prop_assert!(before.ends_with([':', '=']) || before.ends_with(char::is_whitespace), "{}: {:?}", line, pair);
        }
    }
}
