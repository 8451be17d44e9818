package drive

import (
	"encoding/hex"
	"testing"
)

func TestKeysAndValuesAreThoseOfTheRustDriver(t *testing.T) {
	if key := string(Key(0)); key != "e220a8397b1dcdafe4d971771b652c20" {
		t.Error(key)
	}
	if value := hex.EncodeToString(Value(7, 12)); value != "d70d3259e4e1cb6345ceab7e" {
		t.Error(value)
	}
	if len(Key(5)) != 32 || len(Value(5, 256)) != 256 {
		t.Error("other lengths")
	}
}
