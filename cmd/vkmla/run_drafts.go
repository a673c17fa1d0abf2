package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// drafts runs a layer that drafts. The last block is after all tokens of the context, each one
// before it a token earlier.
func (r *layerRun) drafts(ctx context.Context, list []model.LayerWeights) error {
	n, width, size := list[0].Layer, r.cfg.Hidden, r.cfg.DraftBlock
	name := r.f.stem(r.cfg.Layers, n) + "main"
	past, tokens, err := r.hidden(name)
	if err == nil && len(tokens) != 1 {
		err = &vk.ArgumentError{Op: "run: inputs", Arg: name, Got: past.String(), Want: fmt.Sprintf("[tokens, %d]", width)}
	}
	if err != nil {
		return err
	}
	in, shape, err := r.hidden(r.input(n))
	if err == nil && (len(shape) != 2 || shape[1] != size || shape[0] > tokens[0]) {
		err = &vk.ArgumentError{Op: "run: inputs", Arg: r.input(n), Got: in.String(),
			Want: fmt.Sprintf("[blocks, %d, %d], at most a block for each of the %d tokens of %s", size, width, tokens[0], name)}
	}
	if err != nil {
		return err
	}
	weights, err := r.upload(ctx, list)
	if err != nil {
		return err
	}
	defer model.CloseLayers(weights)
	o := r.options(tokens[0] + size)
	o.MaxStep = max(o.MaxStep, size)
	engine, err := pipeline.NewEngine(ctx, r.dev, r.cfg, weights, o)
	if err != nil {
		return err
	}
	defer engine.Close()
	session, err := engine.Open()
	if err != nil {
		return err
	}
	var out []float32
	for i := range shape[0] {
		at, end := session.Len(), tokens[0]-shape[0]+1+i
		if _, err := session.Append(ctx, [][]float32{float32s(past.Part(at*width, end*width))}); err != nil {
			return err
		}
		block := float32s(in.Part(i*size*width, (i+1)*size*width))
		if err := draft(ctx, engine, session, size, block); err != nil {
			return err
		}
		out = append(out, block...)
		r.p.show("layer %d: %d of %d blocks", n, i+1, shape[0])
	}
	return r.put(n, slices.Clone(shape), engine.TopK(), out, nil)
}

// draft replaces the hidden states of a block after a session by what the engine's layer makes of
// them.
func draft(ctx context.Context, engine *pipeline.Engine, s *pipeline.Session, size int, hidden []float32) error {
	st, err := engine.Begin(ctx, pipeline.Chunk{Session: s, Tokens: size, Draft: true})
	if err != nil {
		return err
	}
	defer st.Abort()
	if err = st.SetInput(0, 0, hidden); err == nil {
		err = st.Run(ctx)
	}
	if err == nil {
		err = st.ReadOutput(0, 0, hidden)
	}
	if err != nil {
		return err
	}
	return st.Commit()
}
