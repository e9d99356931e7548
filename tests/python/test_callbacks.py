"""The callbacks, with stand-ins for the libraries. `scripts/test python-loops` tries them with the real ones."""
import os
import sys
import types
import unittest
from unittest import mock

from case import ROOT, Case

import trainit
from trainit import _report


def module(name, **content):
    made = types.ModuleType(name)
    made.__dict__.update(content)
    return made


class Callbacks(Case):
    def setUp(self):
        super().setUp()
        self.under_trainit(TRAINIT_CHECKPOINT_DIR=os.path.join(self.dir, "ck"))
        empty = type("Callback", (), {})
        stand_ins = {
            "transformers": module("transformers", TrainerCallback=empty),
            "lightning": module("lightning"),
            "lightning.pytorch": module("lightning.pytorch", Callback=empty),
            "keras": module("keras", callbacks=module("keras.callbacks", Callback=empty)),
        }
        patched = mock.patch.dict(sys.modules, stand_ins)
        patched.start()
        self.addCleanup(patched.stop)
        for name in ("transformers", "lightning", "keras"):
            sys.modules.pop("trainit." + name, None)

    def notice(self):
        self.write("preemption", "2026-01-02T03:04:05Z\n")

    def test_transformers_saves_and_stops_after_a_notice_and_reports_what_it_logs(self):
        from trainit.transformers import TrainitCallback

        callback, args, state = TrainitCallback(), types.SimpleNamespace(world_size=1), types.SimpleNamespace(global_step=7)
        control = types.SimpleNamespace(should_save=False, should_training_stop=False)
        callback.on_step_end(args, state, control)
        self.assertFalse(control.should_save)
        callback.on_log(args, state, control, logs={"loss": 0.5, "epoch": 1.0, "text": "no", "step": 3})
        self.assertEqual([line.get("loss") for line in self.lines()], ["0.5", None])
        self.notice()
        callback.on_step_end(args, state, control)
        self.assertTrue(control.should_save and control.should_training_stop)

    def test_lightning_saves_once_and_stops_after_a_notice(self):
        from trainit.lightning import TrainitCallback

        saved = []
        strategy = types.SimpleNamespace(reduce_boolean_decision=lambda flag, all: flag)
        trainer = types.SimpleNamespace(global_step=9, callback_metrics={"loss": 1}, strategy=strategy, should_stop=False,
                                        save_checkpoint=saved.append, sanity_checking=False)
        callback = TrainitCallback()
        callback.on_train_batch_end(trainer, None, None, None, 0)
        self.assertEqual(saved, [])
        self.notice()
        callback.on_train_batch_end(trainer, None, None, None, 0)
        callback.on_train_batch_end(trainer, None, None, None, 0)
        self.assertEqual(saved, [os.path.join(self.dir, "ck", "step=9.ckpt")])
        self.assertTrue(trainer.should_stop)
        callback.on_validation_end(trainer, None)
        self.assertEqual(self.lines()[-1]["global_step"], "9")

    def test_keras_goes_on_with_the_optimizers_step_and_saves_whole_files(self):
        from trainit.keras import TrainitCallback

        def save(path):
            with open(path, "w", encoding="ascii") as file:
                file.write("model")

        callback = TrainitCallback()
        callback.model = types.SimpleNamespace(optimizer=types.SimpleNamespace(iterations=40), save=save, stop_training=False)
        callback.on_train_begin()
        callback.on_train_batch_end(0, {"loss": 0.25})
        self.notice()
        callback.on_train_batch_end(1, {"loss": 0.25})
        self.assertEqual(os.listdir(os.path.join(self.dir, "ck")), ["step-42.keras"])
        self.assertTrue(callback.model.stop_training)
        self.assertEqual(self.lines()[0]["global_step"], "41")


class Misuse(Case):
    def test_a_step_by_keyword_is_an_error(self):
        with self.assertRaisesRegex(TypeError, r"trainit.step\(5\)"):
            trainit.step(step=5)

    def test_a_warning_names_the_callers_line(self):
        self.under_trainit()
        for call in (lambda: trainit.report("loss", "x"), lambda: trainit.step(1, loss="x"), lambda: trainit.step("many")):
            trainit._steps = trainit._Steps()
            _report._warned.clear()
            with self.assertWarns(RuntimeWarning) as caught:
                call()
            self.assertEqual(os.path.basename(caught.filename), "test_callbacks.py")

    def test_the_version_is_that_of_the_executable(self):
        with open(ROOT / "Cargo.toml", encoding="utf-8") as file:
            self.assertIn('\nversion = "%s"\n' % trainit.__version__, file.read())


class Errors(Case):
    def test_the_exception_that_ends_python_is_left_for_the_verdict_and_still_shown(self):
        path = os.path.join(self.dir, "error")
        process = self.python("import trainit\nraise ValueError('no such layer')", env={**os.environ, "TORCHELASTIC_ERROR_FILE": path})
        _, err = process.communicate(timeout=60)
        self.assertIn("ValueError: no such layer", err)
        with open(path, encoding="ascii") as file:
            self.assertIn('"message": "ValueError: no such layer"', file.read())

    def test_an_error_that_was_written_before_is_kept(self):
        self.write("error", "first")
        process = self.python("import trainit\n1 / 0", env={**os.environ, "TORCHELASTIC_ERROR_FILE": os.path.join(self.dir, "error")})
        process.communicate(timeout=60)
        with open(os.path.join(self.dir, "error"), encoding="ascii") as file:
            self.assertEqual(file.read(), "first")


if __name__ == "__main__":
    unittest.main()
