package pipeline_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
)

// snapshotPool describes a pool in a snapshot.
type snapshotPool struct {
	name              string
	tokens, keep, all int // tokens of a slot, tokens that are kept or -1, bytes of a slot
}

var (
	windowPool = snapshotPool{"window", 1, 127, 584}
	allPools   = []snapshotPool{{"window", 1, 127, 3 * 584}, {"c4a", 4, -1, 584 + 132}, {"c4a.state", 1, 7, 8192 + 2048},
		{"c128a", 128, -1, 584}, {"c128a.state", 1, 127, 4096}}
	// v41Layers keep seven windows of 24 tokens, entries and keys of two layers, and states of one.
	v41Pools = []snapshotPool{{"window", 1, 23, 7 * 528}, {"ratio2", 2, -1, 288 + 68}, {"ratio2.state", 1, 1, 4096},
		{"ratio1", 1, -1, 288 + 68}}
	v41InV4Pools = []snapshotPool{{"window", 1, 23, 7 * 584}, {"ratio2", 2, -1, 584 + 132}, {"ratio2.state", 1, 1, 4096},
		{"ratio1", 1, -1, 584 + 132}}
)

// snapshotForm describes snapshots, written from the description of the format.
type snapshotForm struct {
	model     pipeline.Fingerprint
	maxTokens uint64
	pools     []snapshotPool
}

const headBytes = 8 + 8 + 3*32 + 3*8

// head is the head of a session's snapshot.
func (f *snapshotForm) head(length, floor uint64) []byte {
	b := append([]byte("vkmlases"), 4, 0, 0, 0, 0, 0, 0, 0)
	b = append(append(append(b, f.model.Config[:]...), f.model.Weights[:]...), f.model.Formats[:]...)
	for _, v := range []uint64{length, floor, uint64(len(f.pools))} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	for _, p := range f.pools {
		first, beyond := p.slots(length, floor)
		b = append(b, p.name+strings.Repeat("\x00", 24-len(p.name))...)
		for _, v := range []uint64{first, beyond, uint64(p.all)} {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	return b
}

func (p *snapshotPool) slots(length, floor uint64) (first, beyond uint64) {
	if p.keep >= 0 && floor > uint64(p.keep) {
		first = floor - uint64(p.keep)
	}
	return first, length / uint64(p.tokens)
}

// body returns the number of bytes of slots that follow a head; 0 for a head of something else.
func (f *snapshotForm) body(head []byte) (sum uint64) {
	length, floor, ok := f.tokens(head)
	if !ok {
		return 0
	}
	for _, p := range f.pools {
		first, beyond := p.slots(length, floor)
		sum += (beyond - first) * uint64(p.all)
	}
	return sum
}

// tokens reads a head's tokens, if there can be such a session.
func (f *snapshotForm) tokens(head []byte) (length, floor uint64, ok bool) {
	if len(head) < headBytes {
		return 0, 0, false
	}
	length, floor = binary.LittleEndian.Uint64(head[112:]), binary.LittleEndian.Uint64(head[120:])
	return length, floor, length <= f.maxTokens && floor <= length
}

// explains tells why a snapshot may be accepted: its head is that of a session in this engine, the
// slots of such a session follow, and the checksum is right. What is in the slots, a checksum
// cannot tell: whoever can write a snapshot can write what a session remembers.
func (f *snapshotForm) explains(file []byte) bool {
	length, floor, ok := f.tokens(file)
	if !ok {
		return false
	}
	head := f.head(length, floor)
	n := uint64(len(file)) - 32
	sum := sha256.Sum256(file[:n])
	return bytes.HasPrefix(file, head) && n == uint64(len(head))+f.body(head) && bytes.Equal(sum[:], file[n:])
}

// alteration makes something like a snapshot: a head and the slots that follow it by its numbers,
// cut or longer by some bytes, with its checksum if it is sealed, a tail, and one byte flipped.
type alteration struct {
	head   []byte
	slots  uint64 // seed
	cut    int16
	sealed bool
	tail   []byte
	at     uint32
	flip   byte
}

func (f *snapshotForm) altered(a alteration) []byte {
	rng, n := rand.New(rand.NewPCG(a.slots, 1)), f.body(a.head)
	file := append([]byte{}, a.head...)
	for range n / 4 { // every size is a multiple of 4
		file = binary.LittleEndian.AppendUint32(file, rng.Uint32())
	}
	if a.cut >= 0 {
		file = append(file, make([]byte, a.cut)...)
	} else {
		file = file[:max(0, len(file)+int(a.cut))]
	}
	if a.sealed {
		sum := sha256.Sum256(file)
		file = append(file, sum[:]...)
	}
	if file = append(file, a.tail...); len(file) > 0 {
		file[int(a.at)%len(file)] ^= a.flip
	}
	return file
}

// seeds are sessions of several lengths, and some that are altered.
func (f *snapshotForm) seeds() (list []alteration) {
	for _, x := range [][2]uint64{{0, 0}, {1, 0}, {3, 3}, {8, 2}, {f.maxTokens, f.maxTokens - 1}, {f.maxTokens, 0}} {
		list = append(list, alteration{head: f.head(x[0], x[1]), slots: x[0], sealed: true})
	}
	head := f.head(5, 4)
	return append(list,
		alteration{head: head, tail: bytes.Repeat([]byte{7}, 32)},
		alteration{head: head, cut: -4, sealed: true},
		alteration{head: head, cut: 4, sealed: true},
		alteration{head: head, sealed: true, tail: []byte{0}},
		alteration{head: head, sealed: true, at: 9, flip: 1},
		alteration{head: f.head(f.maxTokens+1, 0), sealed: true},
		alteration{head: head, sealed: true, at: 128, flip: 1}, // the number of pools
		alteration{head: head[:headBytes+9], sealed: true},
		alteration{head: head[:40], sealed: true})
}

// snapshotError demands an error that says that a snapshot is of no use.
func snapshotError(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, pipeline.ErrSnapshot) {
		assert.ErrorIs(t, err, pipeline.ErrSequenceFull)
	}
}

// FuzzReadSnapshot alters snapshots and reads them without a device. Exactly those that explains
// allows are read, and they are the only snapshots of their sessions.
func FuzzReadSnapshot(f *testing.F) {
	v4 := fakemodel.Config(0, 4, 128)
	var engines []*pipeline.Engine
	var less []*pipeline.Engine // the same without Rewind
	var forms []*snapshotForm
	for _, x := range []struct {
		cfg       model.Config
		records   model.Records
		layers    int
		maxTokens int
		pools     []snapshotPool
	}{{v4, model.RecordsV4, 1, 150, []snapshotPool{windowPool}}, {v4, model.RecordsV4, 3, 9, allPools},
		{v41Layers(), model.RecordsV41, 7, 29, v41Pools}, {v41Layers(), model.RecordsV4, 7, 29, v41InV4Pools}} {
		var layers []*model.DeviceLayer
		for i := range x.layers {
			layers = append(layers, &model.DeviceLayer{Layer: i})
		}
		engine := func(rewind int) *pipeline.Engine {
			o := pipeline.EngineOptions{MaxTokens: x.maxTokens, Rewind: rewind, Records: x.records}
			return must[*pipeline.Engine](f)(pipeline.WithoutDevice(x.cfg, layers, o))
		}
		e := engine(x.maxTokens)
		engines, less = append(engines, e), append(less, engine(0))
		form := &snapshotForm{e.Fingerprint(), uint64(x.maxTokens), x.pools}
		forms = append(forms, form)
		for _, a := range form.seeds() {
			f.Add(uint8(len(forms)-1), a.head, a.slots, a.cut, a.sealed, a.tail, a.at, a.flip)
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, head []byte, slots uint64, cut int16, sealed bool, tail []byte, at uint32, flip byte) {
		form := forms[int(which)%len(forms)]
		file := form.altered(alteration{head, slots, cut, sealed, tail, at, flip})
		tokens, again, err := engines[int(which)%len(forms)].ReadSnapshot(bytes.NewReader(file))
		require.Equal(t, form.explains(file), err == nil, "%v", err)
		short, trimmed, lessErr := less[int(which)%len(forms)].ReadSnapshot(bytes.NewReader(file))
		require.Equal(t, err == nil, lessErr == nil, "%v", lessErr)
		if err != nil {
			snapshotError(t, err)
			snapshotError(t, lessErr)
			return
		}
		require.True(t, bytes.Equal(file, again), "read and written again it is not the same")
		require.Equal(t, tokens, short)
		want := form.head(uint64(tokens), uint64(tokens))
		require.True(t, bytes.HasPrefix(trimmed, want) && form.explains(trimmed), "what is left without Rewind is no snapshot")
	})
}

// restorer is an engine that altered snapshots are restored in, and a session with enough tokens
// that in V4.1 not all entries are candidates.
type restorer struct {
	*snapshotForm
	e      *pipeline.Engine
	hidden int
	clean  *pipeline.Session
	want   [][]float32 // of every layer, what beside gives with an empty session
	used   pipeline.PageCounts
}

func newRestorer(f *testing.F, cfg model.Config, o pipeline.EngineOptions, pools []snapshotPool) *restorer {
	dev := testkit.Device(f)
	_, layers := uploaded(f, dev, written(f, fake(f, fakemodel.Options{Config: cfg, Storage: fakemodel.FP8})))
	x := &restorer{e: engine(f, dev, cfg, layers, o), hidden: cfg.Hidden}
	x.snapshotForm = &snapshotForm{x.e.Fingerprint(), uint64(o.MaxTokens), pools}
	x.clean = must[*pipeline.Session](f)(x.e.Open())
	rng, tokens := rand.New(rand.NewPCG(testkit.Seed(f), 5)), make([][]float32, x.e.Layers())
	for i := range tokens {
		for range 27 * x.hidden {
			tokens[i] = append(tokens[i], float32(rng.NormFloat64()))
		}
	}
	must[[]pipeline.Appended](f)(x.clean.Append(f.Context(), tokens))
	f.Cleanup(func() { x.clean.Close() })
	empty := must[*pipeline.Session](f)(x.e.Open())
	x.want = x.beside(f, empty)
	require.NoError(f, empty.Close())
	x.used = x.pages()
	return x
}

// pages are those that sessions hold.
func (x *restorer) pages() (used pipeline.PageCounts) {
	all, free := x.e.Pages()
	for i := range used {
		used[i] = all[i] - free[i]
	}
	return used
}

// beside returns the outputs of a session that goes on from clean in a step with another.
func (x *restorer) beside(t testing.TB, other *pipeline.Session) [][]float32 {
	fork := must[*pipeline.Session](t)(x.clean.Fork())
	defer fork.Close()
	chunks := []pipeline.Chunk{{Session: fork, Tokens: 1}, {Session: other, Tokens: 1}}
	st := must[*pipeline.Step](t)(x.e.Begin(t.Context(), chunks...))
	defer st.Abort()
	out := make([][]float32, x.e.Layers())
	for i := range out {
		require.NoError(t, errors.Join(st.SetInput(i, 0, slices.Repeat([]float32{1}, x.hidden)), st.SetInput(i, 1, slices.Repeat([]float32{2}, x.hidden))))
	}
	require.NoError(t, st.Run(t.Context()))
	for i := range out {
		out[i] = make([]float32, x.hidden)
		require.NoError(t, st.ReadOutput(i, 0, out[i]))
	}
	require.NoError(t, st.Commit())
	return out
}

// FuzzRestore restores altered snapshots in engines of DeepSeek-V4 and of V4.1 with both its
// records. What explains allows becomes a session that is saved as what it was; a step with it
// gives another session's bits, whatever its slots hold. All else leaves no session.
func FuzzRestore(f *testing.F) {
	testkit.WithoutMatrices(f)
	cfg, o := small()
	o.MaxTokens, o.Rewind = 150, 150
	all := []*restorer{newRestorer(f, cfg, o, []snapshotPool{windowPool})}
	o.MaxTokens, o.Rewind = 29, 29
	for _, o.Records = range []model.Records{model.RecordsV41, model.RecordsV4} {
		pools := map[model.Records][]snapshotPool{model.RecordsV41: v41Pools, model.RecordsV4: v41InV4Pools}[o.Records]
		all = append(all, newRestorer(f, v41Layers(), o, pools))
	}
	for i, x := range all {
		for _, a := range x.seeds() {
			f.Add(uint8(i), a.head, a.slots, a.cut, a.sealed, a.tail, a.at, a.flip)
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, head []byte, slots uint64, cut int16, sealed bool, tail []byte, at uint32, flip byte) {
		x := all[int(which)%len(all)]
		file := x.altered(alteration{head, slots, cut, sealed, tail, at, flip})
		s, err := x.e.Restore(t.Context(), bytes.NewReader(file))
		require.Equal(t, x.explains(file), err == nil, "%v", err)
		if err != nil {
			snapshotError(t, err)
		} else {
			var again bytes.Buffer
			require.NoError(t, s.Save(t.Context(), &again))
			require.True(t, bytes.Equal(file, again.Bytes()), "saved again it is not the same")
			if uint64(s.Len()) < x.maxTokens {
				require.Equal(t, x.want, x.beside(t, s), "beside a session with altered slots")
			}
			require.NoError(t, s.Close())
		}
		require.Equal(t, x.used, x.pages(), "pages in use")
	})
}
